//! CLAIM OUT and CLAIM IN (operation codes C1h and C0h), with which the cache of a gateway becomes
//! the exclusive writer of a unit. `docs/protocols.md` describes their bytes.

use crc_fast::{CrcAlgorithm, checksum};

use crate::Sense;

/// The service actions of CLAIM OUT, with which a gateway becomes the exclusive writer of a unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum ClaimAction {
    /// Become the exclusive writer of the unit.
    Claim = 0x00,
    /// Give the claim back. The owner's log then holds no data that the unit lacks.
    Release = 0x01,
    /// Report the newest write that the log of the exclusive writer guarantees to hold.
    Advance = 0x02,
}

/// The parameter list of CLAIM OUT. A log may be copied by an operator; `opening` and
/// `predecessors` distinguish the copies.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ClaimParameters {
    /// The name of the claiming initiator: printable ASCII, 1 to 223 bytes.
    pub owner: String,
    /// The instance id of the owner's log.
    pub instance: [u8; 16],
    /// The log generation: how often the log was opened. At least 1.
    pub generation: u64,
    /// Random number that identifies this opening of the log; not 0.
    pub opening: u64,
    /// The log generation whose claim the unit granted last, as the log has recorded it. 0 if none
    /// was granted; equal to `generation` if this opening of the log presents its claim again.
    pub granted: u64,
    /// The random numbers of at most 8 earlier openings of this log.
    pub predecessors: Vec<u64>,
    /// True if the log may hold dirty data from now on: the gateway acknowledges writes before destage.
    pub writes_back: bool,
    /// True if the log holds dirty data at present.
    pub is_dirty: bool,
    /// True if the unit should grant the claim even if it may have lost writes.
    pub accept_loss: bool,
    /// True to be granted the claim even if a session of a predecessor exists. That session is then
    /// fenced.
    pub takes_over: bool,
    /// True if the gateway shares the unit with other gateways under coherence tokens.
    pub shares: bool,
    /// The number of the newest write that the log guarantees to hold. `None` in a list of version
    /// 1, which older gateways send.
    pub confirmed: Option<u64>,
}

/// The parameter data of CLAIM IN: which gateway and log have the exclusive right to write the unit.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ClaimReport {
    /// The name of the initiator that claimed last; empty if the unit was never claimed.
    pub owner: String,
    /// The instance id of the owner's log.
    pub instance: [u8; 16],
    /// Generation of the log to which the unit has granted its last claim.
    pub generation: u64,
    /// True if the claim is in force, so that no other log may write the unit.
    pub is_held: bool,
    /// True if the owner's log may hold dirty data.
    pub is_dirty: bool,
    /// True if the operator of the unit has dropped this claim.
    pub is_dropped: bool,
    /// True if a session of the claim's owner is connected and has presented the claim.
    pub is_present: bool,
    /// The number of the newest write that the log has confirmed. Only a report of the node itself
    /// has it: CLAIM IN does not transfer it, so it is 0 in a parsed report.
    pub confirmed: u64,
}

impl ClaimParameters {
    /// Maximum length in bytes of the parameter list of CLAIM OUT.
    pub const MOST_BYTES: usize = FIXED + 8 + MOST_PREDECESSORS * 8 + MOST_OWNER + CHECKSUM;

    /// Encodes the parameter list of CLAIM OUT with its checksum. The version is 2 if `confirmed`
    /// is set, otherwise 1.
    ///
    /// # Panics
    /// If owner or predecessors are too long. Our own code builds this list.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        assert!(self.owner.len() <= MOST_OWNER && self.predecessors.len() <= MOST_PREDECESSORS);
        let confirmed = self.confirmed.map(u64::to_be_bytes);
        let fixed = FIXED + confirmed.map_or(0, |bytes| bytes.len());
        let length = fixed + self.predecessors.len() * 8 + self.owner.len() + CHECKSUM;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0, if confirmed.is_some() { WITH_CONFIRMED } else { VERSION }]);
        bytes.extend_from_slice(&(length as u16).to_be_bytes());
        let flags = flag(self.writes_back, WRITES_BACK)
            | flag(self.is_dirty, IS_DIRTY)
            | flag(self.accept_loss, ACCEPT_LOSS)
            | flag(self.takes_over, TAKES_OVER)
            | flag(self.shares, SHARES);
        bytes.extend_from_slice(&[flags, self.owner.len() as u8, self.predecessors.len() as u8, 0]);
        bytes.extend_from_slice(&self.instance);
        for number in [self.generation, self.opening, self.granted] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.extend(confirmed.into_iter().flatten());
        for number in &self.predecessors {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.extend_from_slice(self.owner.as_bytes());
        sealed(bytes)
    }

    /// Parses and checks a parameter list of CLAIM OUT.
    ///
    /// # Errors
    /// 5/1A/00 for a list that is truncated or disagrees with its length field; 5/26/00 with a
    /// pointer to the wrong field.
    pub fn from_bytes(list: &[u8]) -> Result<Self, Sense> {
        let wrong = Sense::invalid_field_in_parameter_list;
        let (fixed, rest) =
            list.split_first_chunk::<FIXED>().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        if fixed[..8] != *MAGIC {
            return Err(wrong(0));
        }
        let confirmed_bytes = match fixed[8..10] {
            [0, VERSION] => 0,
            [0, WITH_CONFIRMED] => 8,
            _ => return Err(wrong(8)),
        };
        let (owner_length, count) = (usize::from(fixed[13]), usize::from(fixed[14]));
        let length = FIXED + confirmed_bytes + count * 8 + owner_length + CHECKSUM;
        if usize::from(u16::from_be_bytes([fixed[10], fixed[11]])) != length || list.len() != length
        {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        }
        if !is_sealed(list) {
            return Err(wrong((length - CHECKSUM) as u16));
        }
        if count > MOST_PREDECESSORS {
            return Err(wrong(14));
        }
        let (confirmed, rest) = rest.split_at(confirmed_bytes);
        let confirmed = (!confirmed.is_empty()).then(|| be64(confirmed));
        let (predecessors, rest) = rest.split_at(count * 8);
        let owner = &rest[..owner_length];
        let is_name = (1..=MOST_OWNER).contains(&owner_length) && owner.iter().all(is_printable);
        let owner = std::str::from_utf8(owner).ok().filter(|_| is_name).ok_or(wrong(13))?;
        let number = |at: usize| be64(&fixed[at..]);
        let parameters = Self {
            owner: owner.to_owned(),
            instance: fixed[16..32].try_into().expect("sixteen bytes"),
            generation: number(32),
            opening: number(40),
            granted: number(48),
            predecessors: predecessors.chunks_exact(8).map(be64).collect(),
            writes_back: fixed[12] & WRITES_BACK != 0,
            is_dirty: fixed[12] & IS_DIRTY != 0,
            accept_loss: fixed[12] & ACCEPT_LOSS != 0,
            takes_over: fixed[12] & TAKES_OVER != 0,
            shares: fixed[12] & SHARES != 0,
            confirmed,
        };
        match &parameters {
            Self { generation: 0, .. } => Err(wrong(32)),
            Self { opening: 0, .. } => Err(wrong(40)),
            Self { generation, granted, .. } if granted > generation => Err(wrong(48)),
            _ => Ok(parameters),
        }
    }
}

impl ClaimReport {
    /// Maximum length in bytes of the CLAIM IN report.
    pub const MOST_BYTES: usize = REPORT_FIXED + MOST_OWNER + CHECKSUM;

    /// Encodes the CLAIM IN report with its checksum.
    ///
    /// # Panics
    /// If the owner is too long; the unit checked the length when it accepted the claim.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        assert!(self.owner.len() <= MOST_OWNER);
        let length = REPORT_FIXED + self.owner.len() + CHECKSUM;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0, VERSION]);
        bytes.extend_from_slice(&(length as u16).to_be_bytes());
        let flags = flag(self.is_held, 1)
            | flag(self.is_dirty, 2)
            | flag(self.is_dropped, 4)
            | flag(self.is_present, 8);
        bytes.extend_from_slice(&[flags, self.owner.len() as u8, 0, 0]);
        bytes.extend_from_slice(&self.instance);
        bytes.extend_from_slice(&self.generation.to_be_bytes());
        bytes.extend_from_slice(self.owner.as_bytes());
        sealed(bytes)
    }

    /// Parses and checks a CLAIM IN report of another target. Returns `None` if it is not valid.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_first_chunk::<REPORT_FIXED>()?;
        let owner_length = usize::from(fixed[13]);
        let length = REPORT_FIXED + owner_length + CHECKSUM;
        let is_right = fixed[..8] == *MAGIC
            && fixed[8..10] == [0, VERSION]
            && usize::from(u16::from_be_bytes([fixed[10], fixed[11]])) == length
            && bytes.len() == length
            && owner_length <= MOST_OWNER
            && is_sealed(bytes);
        let owner = rest.get(..owner_length).filter(|owner| owner.iter().all(is_printable))?;
        let owner = std::str::from_utf8(owner).ok()?.to_owned();
        let flags = fixed[12];
        is_right.then_some(Self {
            owner,
            instance: fixed[16..32].try_into().expect("sixteen bytes"),
            generation: be64(&fixed[32..]),
            is_held: flags & 1 != 0,
            is_dirty: flags & 2 != 0,
            is_dropped: flags & 4 != 0,
            is_present: flags & 8 != 0,
            confirmed: 0,
        })
    }
}

fn is_printable(byte: &u8) -> bool {
    matches!(byte, b' '..=b'~')
}

fn flag(is_set: bool, bit: u8) -> u8 {
    if is_set { bit } else { 0 }
}

fn be64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(*bytes.first_chunk().expect("eight bytes"))
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = crc32c(&bytes);
    bytes.extend_from_slice(&sum.to_be_bytes());
    bytes
}

fn is_sealed(bytes: &[u8]) -> bool {
    let parts = bytes.split_last_chunk::<CHECKSUM>();
    parts.is_some_and(|(rest, sum)| crc32c(rest) == u32::from_be_bytes(*sum))
}

fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

const MAGIC: &[u8; 8] = b"FBYCLAIM";
const VERSION: u8 = 1;
/// Version of a CLAIM OUT parameter list that contains the field `confirmed`.
const WITH_CONFIRMED: u8 = 2;
/// The longest iSCSI name in bytes (RFC 7143, 4.2.7.1).
const MOST_OWNER: usize = 223;
/// The most identifiers of earlier openings (`predecessors`) that a log keeps.
const MOST_PREDECESSORS: usize = 8;
/// The length in bytes of the fields before the predecessors in the parameter list of CLAIM OUT.
const FIXED: usize = 56;
/// The length in bytes of the fields before the owner in the report of CLAIM IN.
const REPORT_FIXED: usize = 40;
const CHECKSUM: usize = 4;
const WRITES_BACK: u8 = 1;
const IS_DIRTY: u8 = 2;
const ACCEPT_LOSS: u8 = 4;
const TAKES_OVER: u8 = 8;
const SHARES: u8 = 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> ClaimParameters {
        ClaimParameters {
            owner: "iqn.a:b".into(),
            instance: *b"0123456789abcdef",
            generation: 9,
            opening: 77,
            granted: 7,
            predecessors: vec![55, 66],
            writes_back: true,
            is_dirty: false,
            accept_loss: true,
            takes_over: false,
            shares: true,
            confirmed: None,
        }
    }

    fn report() -> ClaimReport {
        ClaimReport {
            owner: "iqn.a:b".into(),
            instance: [3; 16],
            generation: 9,
            is_held: true,
            is_dirty: true,
            is_dropped: false,
            is_present: true,
            confirmed: 0,
        }
    }

    #[test]
    fn the_list_is_encoded_byte_by_byte_and_decoded_again() {
        let bytes = sample().to_bytes();
        assert_eq!(bytes[..16], *b"FBYCLAIM\x00\x01\x00\x53\x15\x07\x02\x00");
        assert_eq!(bytes[16..32], *b"0123456789abcdef");
        assert_eq!(
            bytes[32..56],
            [0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0, 7]
        );
        assert_eq!(bytes[56..72], [0, 0, 0, 0, 0, 0, 0, 55, 0, 0, 0, 0, 0, 0, 0, 66]);
        assert_eq!(bytes[72..79], *b"iqn.a:b");
        assert_eq!(ClaimParameters::from_bytes(&bytes), Ok(sample()));
        let longest = ClaimParameters {
            owner: "a".repeat(223),
            predecessors: (1..9).collect(),
            confirmed: Some(1),
            ..sample()
        };
        assert_eq!(longest.to_bytes().len(), ClaimParameters::MOST_BYTES);
        assert_eq!(ClaimParameters::from_bytes(&longest.to_bytes()), Ok(longest));
    }

    #[test]
    fn a_list_with_a_confirmed_number_is_encoded_byte_by_byte_and_decoded_again() {
        let confirmed = ClaimParameters { confirmed: Some(0x0102), ..sample() };
        let bytes = confirmed.to_bytes();
        assert_eq!(bytes[..16], *b"FBYCLAIM\x00\x02\x00\x5b\x15\x07\x02\x00");
        assert_eq!(bytes[56..64], [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(bytes[64..80], [0, 0, 0, 0, 0, 0, 0, 55, 0, 0, 0, 0, 0, 0, 0, 66]);
        assert_eq!(bytes[80..87], *b"iqn.a:b");
        assert_eq!(ClaimParameters::from_bytes(&bytes), Ok(confirmed));
        for length in 0..bytes.len() {
            assert!(ClaimParameters::from_bytes(&bytes[..length]).is_err());
        }
    }

    #[test]
    fn the_report_is_encoded_byte_by_byte_and_decoded_again() {
        let bytes = report().to_bytes();
        assert_eq!(bytes[..16], *b"FBYCLAIM\x00\x01\x00\x33\x0b\x07\x00\x00");
        assert_eq!(bytes[32..47], *b"\0\0\0\0\0\0\0\x09iqn.a:b");
        assert_eq!(ClaimReport::from_bytes(&bytes), Some(report()));
        assert_eq!(ClaimReport::from_bytes(&ClaimReport::default().to_bytes()).unwrap().owner, "");
    }

    #[test]
    fn a_claim_with_one_flipped_bit_is_never_accepted() {
        let (list, told) = (sample().to_bytes(), report().to_bytes());
        for at in 0..list.len() * 8 {
            let mut bytes = list.clone();
            bytes[at / 8] ^= 1 << (at % 8);
            assert!(ClaimParameters::from_bytes(&bytes).is_err(), "{at}");
        }
        for at in 0..told.len() * 8 {
            let mut bytes = told.clone();
            bytes[at / 8] ^= 1 << (at % 8);
            assert_eq!(ClaimReport::from_bytes(&bytes), None, "{at}");
        }
        for length in 0..list.len() {
            assert!(ClaimParameters::from_bytes(&list[..length]).is_err());
        }
    }

    #[test]
    fn names_with_control_characters_and_impossible_numbers_are_refused() {
        let wrong = [
            ClaimParameters { owner: String::new(), ..sample() },
            ClaimParameters { owner: "a\x1b[2J".into(), ..sample() },
            ClaimParameters { owner: "a\nb".into(), ..sample() },
            ClaimParameters { owner: "ä".into(), ..sample() },
            ClaimParameters { generation: 0, granted: 0, ..sample() },
            ClaimParameters { opening: 0, ..sample() },
            ClaimParameters { granted: 10, ..sample() },
        ];
        for claim in wrong {
            let told = ClaimParameters::from_bytes(&claim.to_bytes());
            assert!(told.is_err(), "{claim:?}");
        }
    }

    proptest! {
        #[test]
        fn hostile_fields_under_a_right_checksum_do_not_panic(
            fields in prop::collection::vec((0..80usize, any::<u8>()), 0..40),
        ) {
            let mut bytes = sample().to_bytes();
            bytes.truncate(bytes.len() - CHECKSUM);
            let length = bytes.len();
            for (at, byte) in fields {
                bytes[at % length] = byte;
            }
            let bytes = sealed(bytes);
            let _ = ClaimParameters::from_bytes(&bytes);
            let _ = ClaimReport::from_bytes(&bytes);
        }
    }
}
