//! Encodes requests and answers as lists of bytes, as `docs/formats/network.md` describes. All numbers are big-endian.
//!
//! A list consists of a magic number, a version, its length, the parameters of the volume, its entries and a CRC32C.
//! An entry begins with its type.

use crc_fast::{CrcAlgorithm, checksum};

use crate::{
    grantor::Terms,
    message::{CoherenceReply, CoherenceRequest},
    token::{CoherenceRange, CoherenceToken, Grant, MOST_TOKENS},
};

/// Length of the longest list in bytes: a Joined with all ranges that a gateway can name.
pub const MOST_LIST_BYTES: usize = 1 << 20;

/// The reason why bytes are not a valid list.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ListError {
    #[error("not a list of coherence tokens")]
    Magic,
    #[error("a list of coherence tokens of an unknown version")]
    Version,
    /// The list is truncated, too long, or does not have the length that its header gives.
    #[error("a list of coherence tokens with a wrong length")]
    Length,
    #[error("a list of coherence tokens with a wrong checksum")]
    Checksum,
    #[error("a list of coherence tokens with an invalid entry")]
    Entry,
}

/// The parameters of the volume and the number of blocks of a range; `None` in a list that a
/// gateway sends.
pub type SharedVolumeTerms = Option<(Terms, u32)>;

/// Encodes as many requests as fit into a list, from the front. Returns the list and their number.
#[must_use]
pub fn write_requests(requests: &[CoherenceRequest]) -> (Vec<u8>, usize) {
    write(begin(None), requests, MOST_LIST_BYTES, write_request)
}

/// Decodes a list of requests.
///
/// # Errors
/// If the bytes are not a list that `write_requests` can produce.
pub fn read_requests(bytes: &[u8]) -> Result<Vec<CoherenceRequest>, ListError> {
    let (_, mut entries) = open(bytes)?;
    let mut all = Vec::new();
    while !entries.0.is_empty() {
        all.push(read_request(&mut entries).ok_or(ListError::Entry)?);
    }
    Ok(all)
}

/// Encodes as many answers as fit into `room` bytes, from the front. Returns the list and their number. `grain` is the
/// number of blocks of a range.
#[must_use]
pub fn write_answers<'a>(
    terms: Terms,
    grain: u32,
    answers: impl IntoIterator<Item = &'a CoherenceReply>,
    most: usize,
) -> (Vec<u8>, usize) {
    write(begin(Some((terms, grain))), answers, most.min(MOST_LIST_BYTES), write_answer)
}

fn write<'a, T: 'a>(
    mut list: Vec<u8>,
    entries: impl IntoIterator<Item = &'a T>,
    most: usize,
    write_one: impl Fn(&mut Vec<u8>, &T),
) -> (Vec<u8>, usize) {
    let mut count = 0;
    for entry in entries {
        let before = list.len();
        write_one(&mut list, entry);
        if list.len() + CHECKSUM > most {
            list.truncate(before);
            break;
        }
        count += 1;
    }
    (end(list), count)
}

/// Decodes a list of answers. Returns the parameters of the volume, the number of blocks of a range, and the answers.
///
/// # Errors
/// If the bytes are not a list that `write_answers` can produce.
pub fn read_answers(bytes: &[u8]) -> Result<(Terms, u32, Vec<CoherenceReply>), ListError> {
    let (volume, mut entries) = open(bytes)?;
    let (terms, grain) = volume.ok_or(ListError::Entry)?;
    let mut all = Vec::new();
    while !entries.0.is_empty() {
        all.push(read_answer(&mut entries).ok_or(ListError::Entry)?);
    }
    Ok((terms, grain, all))
}

fn begin(volume: SharedVolumeTerms) -> Vec<u8> {
    let mut list = MAGIC.to_vec();
    list.extend_from_slice(&VERSION.to_be_bytes());
    list.extend_from_slice(&[0, 0]);
    list.extend_from_slice(&[0; 4]);
    let (lease, ranges, grain) =
        volume.map_or((0, 0, 0), |(terms, grain)| (terms.lease, terms.ranges, grain));
    list.extend_from_slice(&lease.to_be_bytes());
    list.extend_from_slice(&ranges.to_be_bytes());
    list.extend_from_slice(&grain.to_be_bytes());
    list
}

fn end(mut list: Vec<u8>) -> Vec<u8> {
    let length = (list.len() + CHECKSUM) as u32;
    list[12..16].copy_from_slice(&length.to_be_bytes());
    let sum = checksum(CrcAlgorithm::Crc32Iscsi, &list) as u32;
    list.extend_from_slice(&sum.to_be_bytes());
    list
}

fn open(bytes: &[u8]) -> Result<(SharedVolumeTerms, Entries<'_>), ListError> {
    if bytes.len() < FIXED + CHECKSUM || bytes.len() > MOST_LIST_BYTES {
        return Err(ListError::Length);
    }
    let (list, sum) = bytes.split_at(bytes.len() - CHECKSUM);
    let mut head = Entries(list);
    let magic: [u8; 8] = head.take().ok_or(ListError::Length)?;
    if magic != *MAGIC {
        return Err(ListError::Magic);
    }
    if head.u16().ok_or(ListError::Length)? != VERSION {
        return Err(ListError::Version);
    }
    let reserved = head.u16().ok_or(ListError::Length)?;
    if head.u32().ok_or(ListError::Length)? as usize != bytes.len() {
        return Err(ListError::Length);
    }
    if (checksum(CrcAlgorithm::Crc32Iscsi, list) as u32).to_be_bytes() != *sum {
        return Err(ListError::Checksum);
    }
    let numbers = (head.u64(), head.u32(), head.u32());
    let (Some(lease), Some(ranges), Some(grain)) = numbers else { return Err(ListError::Length) };
    if reserved != 0 {
        return Err(ListError::Entry);
    }
    let is_volume = lease >= 8 && ranges > 0 && grain > 0;
    let volume = is_volume.then_some((Terms { lease, ranges }, grain));
    Ok((volume, head))
}

fn write_request(list: &mut Vec<u8>, request: &CoherenceRequest) {
    match request {
        CoherenceRequest::Join { number, exclusive } => {
            list.push(0x01);
            put(list, &[*number]);
            list.extend_from_slice(&(exclusive.len() as u32).to_be_bytes());
            exclusive.iter().for_each(|range| list.extend_from_slice(&range.0.to_be_bytes()));
        }
        CoherenceRequest::Acquire { life, range, token, number } => {
            list.push(0x02);
            put(list, &[*life]);
            list.extend_from_slice(&range.0.to_be_bytes());
            list.push(*token as u8);
            put(list, &[*number]);
        }
        CoherenceRequest::Release { life, range, grant, keeps } => {
            list.push(0x03);
            put(list, &[*life]);
            list.extend_from_slice(&range.0.to_be_bytes());
            put(list, &[grant.0]);
            list.push((*keeps).into());
        }
        CoherenceRequest::Renew { life, sent } => {
            list.push(0x04);
            put(list, &[*life, *sent]);
        }
    }
}

fn read_request(entries: &mut Entries<'_>) -> Option<CoherenceRequest> {
    Some(match entries.u8()? {
        0x01 => {
            let number = entries.u64()?;
            let exclusive = entries.many(Entries::range)?;
            CoherenceRequest::Join { number, exclusive }
        }
        0x02 => CoherenceRequest::Acquire {
            life: entries.u64()?,
            range: entries.range()?,
            token: entries.token()?,
            number: entries.u64()?,
        },
        0x03 => CoherenceRequest::Release {
            life: entries.u64()?,
            range: entries.range()?,
            grant: entries.grant()?,
            keeps: entries.flag()?,
        },
        0x04 => CoherenceRequest::Renew { life: entries.u64()?, sent: entries.u64()? },
        _ => return None,
    })
}

fn write_answer(list: &mut Vec<u8>, answer: &CoherenceReply) {
    match answer {
        CoherenceReply::Joined { number, life, grants, lost } => {
            list.push(0x81);
            put(list, &[*number, *life]);
            list.extend_from_slice(&(grants.len() as u32).to_be_bytes());
            for (range, grant) in grants {
                list.extend_from_slice(&range.0.to_be_bytes());
                put(list, &[grant.0]);
            }
            list.extend_from_slice(&(lost.len() as u32).to_be_bytes());
            lost.iter().for_each(|range| list.extend_from_slice(&range.0.to_be_bytes()));
        }
        CoherenceReply::Granted { life, range, token, number, grant } => {
            list.push(0x82);
            put(list, &[*life]);
            list.extend_from_slice(&range.0.to_be_bytes());
            list.push(*token as u8);
            put(list, &[*number, grant.0]);
        }
        CoherenceReply::Recall { life, range, grant, keeps } => {
            list.push(0x83);
            put(list, &[*life]);
            list.extend_from_slice(&range.0.to_be_bytes());
            put(list, &[grant.0]);
            list.push((*keeps).into());
        }
        CoherenceReply::Released { life, range, grant, keeps } => {
            list.push(0x84);
            put(list, &[*life]);
            list.extend_from_slice(&range.0.to_be_bytes());
            put(list, &[grant.0]);
            list.push((*keeps).into());
        }
        CoherenceReply::Renewed { life, sent } => {
            list.push(0x85);
            put(list, &[*life, *sent]);
        }
        CoherenceReply::Rejoin { life } => {
            list.push(0x86);
            put(list, &[*life]);
        }
    }
}

fn read_answer(entries: &mut Entries<'_>) -> Option<CoherenceReply> {
    Some(match entries.u8()? {
        0x81 => {
            let (number, life) = (entries.u64()?, entries.u64()?);
            let grants = entries.many(|entries| Some((entries.range()?, entries.grant()?)))?;
            let lost = entries.many(Entries::range)?;
            CoherenceReply::Joined { number, life, grants, lost }
        }
        0x82 => CoherenceReply::Granted {
            life: entries.u64()?,
            range: entries.range()?,
            token: entries.token()?,
            number: entries.u64()?,
            grant: entries.grant()?,
        },
        0x83 => CoherenceReply::Recall {
            life: entries.u64()?,
            range: entries.range()?,
            grant: entries.grant()?,
            keeps: entries.flag()?,
        },
        0x84 => CoherenceReply::Released {
            life: entries.u64()?,
            range: entries.range()?,
            grant: entries.grant()?,
            keeps: entries.flag()?,
        },
        0x85 => CoherenceReply::Renewed { life: entries.u64()?, sent: entries.u64()? },
        0x86 => CoherenceReply::Rejoin { life: entries.u64()? },
        _ => return None,
    })
}

fn put(list: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| list.extend_from_slice(&number.to_be_bytes()));
}

/// The rest of an encoded list, whose entries are still to be decoded.
struct Entries<'a>(&'a [u8]);

impl Entries<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn range(&mut self) -> Option<CoherenceRange> {
        self.u32().map(CoherenceRange)
    }

    fn grant(&mut self) -> Option<Grant> {
        self.u64().map(Grant)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn token(&mut self) -> Option<CoherenceToken> {
        match self.u8()? {
            0 => Some(CoherenceToken::SharedRead),
            1 => Some(CoherenceToken::ExclusiveWrite),
            _ => None,
        }
    }

    /// Decodes a sequence with a count in front. The count comes from the peer: no memory is allocated for it in
    /// advance, and it is limited to the number of ranges that a gateway can name.
    fn many<T>(&mut self, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u32()? as usize;
        if count > 2 * MOST_TOKENS {
            return None;
        }
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(one(self)?);
        }
        Some(all)
    }
}

const MAGIC: &[u8; 8] = b"FBTOKENS";
const VERSION: u16 = 1;
/// Length of the header of a list in bytes.
const FIXED: usize = 32;
const CHECKSUM: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Vec<CoherenceRequest> {
        vec![
            CoherenceRequest::Join {
                number: 3,
                exclusive: vec![CoherenceRange(7), CoherenceRange(9)],
            },
            CoherenceRequest::Acquire {
                life: 1,
                range: CoherenceRange(2),
                token: CoherenceToken::ExclusiveWrite,
                number: 4,
            },
            CoherenceRequest::Release {
                life: 1,
                range: CoherenceRange(2),
                grant: Grant(5),
                keeps: true,
            },
            CoherenceRequest::Renew { life: 1, sent: 6 },
        ]
    }

    fn answers() -> Vec<CoherenceReply> {
        let (life, range, grant) = (1, CoherenceRange(2), Grant(5));
        vec![
            CoherenceReply::Joined {
                number: 3,
                life,
                grants: vec![(range, grant)],
                lost: vec![CoherenceRange(9)],
            },
            CoherenceReply::Granted {
                life,
                range,
                token: CoherenceToken::SharedRead,
                number: 4,
                grant,
            },
            CoherenceReply::Recall { life, range, grant, keeps: false },
            CoherenceReply::Released { life, range, grant, keeps: true },
            CoherenceReply::Renewed { life, sent: 6 },
            CoherenceReply::Rejoin { life },
        ]
    }

    const TERMS: Terms = Terms { lease: 10_000, ranges: 64 };

    #[test]
    fn requests_are_encoded_byte_by_byte_and_decoded_again() {
        let (list, _) = write_requests(&requests());
        assert_eq!(list[..12], *b"FBTOKENS\0\x01\0\0");
        assert_eq!(list[12..16], (list.len() as u32).to_be_bytes());
        assert_eq!(list[32..49], [1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 7]);
        assert_eq!(read_requests(&list), Ok(requests()));
    }

    #[test]
    fn answers_are_encoded_byte_by_byte_and_decoded_again() {
        let (list, count) = write_answers(TERMS, 2048, &answers(), MOST_LIST_BYTES);
        assert_eq!(count, answers().len());
        assert_eq!(list[16..32], [0, 0, 0, 0, 0, 0, 0x27, 0x10, 0, 0, 0, 64, 0, 0, 8, 0]);
        assert_eq!(read_answers(&list), Ok((TERMS, 2048, answers())));
    }

    #[test]
    fn answers_that_do_not_fit_are_left_for_the_next_list() {
        let most = FIXED + CHECKSUM + 80;
        let (list, count) = write_answers(TERMS, 2048, &answers(), most);
        assert!(list.len() <= most && count < answers().len(), "{count}");
        assert_eq!(read_answers(&list).map(|(.., all)| all.len()), Ok(count));
    }

    #[test]
    fn requests_that_do_not_fit_are_left_for_the_next_list() {
        let renewals = vec![CoherenceRequest::Renew { life: 1, sent: 6 }; MOST_LIST_BYTES / 17 + 1];
        let (list, count) = write_requests(&renewals);
        assert!(list.len() <= MOST_LIST_BYTES && count < renewals.len(), "{count}");
        assert_eq!(read_requests(&list).map(|all| all.len()), Ok(count));
    }

    #[test]
    fn any_bytes_of_a_peer_decode_to_an_error_or_a_list() {
        let (list, _) = write_requests(&requests());
        for length in 0..list.len() {
            assert!(read_requests(&list[..length]).is_err(), "{length}");
        }
        for at in 0..list.len() {
            for bit in 0..8 {
                let mut bytes = list.clone();
                bytes[at] ^= 1 << bit;
                assert!(read_requests(&bytes).is_err(), "{at}");
            }
        }
        // The header and the checksum are valid, but the entry claims more ranges than it contains.
        for entry in
            [&[0x01, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff][..], &[0x07], &[0x02, 0]]
        {
            let mut list = begin(None);
            list.extend_from_slice(entry);
            assert_eq!(read_requests(&end(list)), Err(ListError::Entry), "{entry:?}");
        }
    }
}
