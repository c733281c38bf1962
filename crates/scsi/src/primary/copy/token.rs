//! ROD tokens of block devices: the parameter lists of POPULATE TOKEN and WRITE USING TOKEN (SBC-3,
//! 5.11 and 5.47), and the bytes of a token (SPC-4, 5.16.7.5).

use super::list::Cscd;
use crate::{
    Sense,
    field::{array_at, u8_at, u16_at, u32_at, u64_at},
};

/// The length of every ROD token in bytes.
pub const TOKEN_BYTES: usize = 512;

/// A range of blocks in the parameter list of a token command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TokenRange {
    pub lba: u64,
    /// The length of the range in blocks. A range of zero blocks is not an error.
    pub blocks: u32,
}

/// The parameter list of POPULATE TOKEN.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PopulateToken {
    /// INACTIVITY TIMEOUT in seconds; zero requests the default.
    pub timeout_s: u32,
    /// ROD TYPE field; `None` if the initiator requests no type (RTV=0).
    pub rod_type: Option<u32>,
    /// The blocks that the token will represent.
    pub ranges: Vec<TokenRange>,
}

/// The parameter list of WRITE USING TOKEN.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WriteUsingToken {
    /// DEL_TKN bit: the target may delete the token after this command.
    pub delete: bool,
    /// OFFSET INTO ROD field, in blocks.
    pub offset: u64,
    pub token: [u8; TOKEN_BYTES],
    /// The ranges of blocks that the command writes.
    pub ranges: Vec<TokenRange>,
}

/// The contents of a ROD token. The target accepts only exact copies of tokens that it has made;
/// the fields other than `identifier` and `secret` are for people who inspect a trace.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RodToken {
    /// COPY MANAGER ROD TOKEN IDENTIFIER, which no other token of the same copy manager has.
    pub identifier: u64,
    /// The unit that made the token.
    pub creator: Cscd,
    /// The size of the represented data in bytes.
    pub bytes: u64,
    /// Random bytes, so that a valid token cannot be guessed.
    pub secret: [u8; 32],
}

/// Point in time copy, change vulnerable (SPC-4, table 108): a write to the represented blocks
/// invalidates the token.
pub const ROD_TYPE: u32 = 0x0080_0001;
/// Maximum number of block ranges in a parameter list.
pub const RANGES: usize = 64;

impl PopulateToken {
    /// Encodes the parameter list of POPULATE TOKEN.
    ///
    /// # Panics
    /// If the length of the ranges does not fit two bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        bytes[2] = u8::from(self.rod_type.is_some()) << 1;
        bytes[4..8].copy_from_slice(&self.timeout_s.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rod_type.unwrap_or(0).to_be_bytes());
        append_ranges(&mut bytes, &self.ranges);
        bytes
    }

    /// Parses the parameter list of POPULATE TOKEN. Ignores IMMED: the status is always sent
    /// together with the token.
    ///
    /// # Errors
    /// 5/1A/00 for a list that is shorter than its length fields say; 5/26/00 for more than
    /// [`RANGES`] ranges.
    pub fn parse(bytes: &[u8]) -> Result<Self, Sense> {
        let short_of = || Sense::PARAMETER_LIST_LENGTH_ERROR;
        let ranges = parse_ranges(bytes, 14)?;
        let typed = u8_at(bytes, 2).ok_or_else(short_of)? & 0x02 != 0;
        let rod_type = u32_at(bytes, 8).ok_or_else(short_of)?;
        Ok(Self {
            timeout_s: u32_at(bytes, 4).ok_or_else(short_of)?,
            rod_type: typed.then_some(rod_type),
            ranges,
        })
    }
}

impl WriteUsingToken {
    /// Encodes the parameter list of WRITE USING TOKEN.
    ///
    /// # Panics
    /// If the length of the ranges does not fit two bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 536];
        bytes[2] = u8::from(self.delete) << 1;
        bytes[8..16].copy_from_slice(&self.offset.to_be_bytes());
        bytes[16..528].copy_from_slice(&self.token);
        append_ranges(&mut bytes, &self.ranges);
        bytes
    }

    /// Parses the parameter list of WRITE USING TOKEN. Ignores IMMED: the status is always sent
    /// when the blocks are written.
    ///
    /// # Errors
    /// The errors of [`PopulateToken::parse`].
    pub fn parse(bytes: &[u8]) -> Result<Self, Sense> {
        let short_of = || Sense::PARAMETER_LIST_LENGTH_ERROR;
        let ranges = parse_ranges(bytes, 534)?;
        Ok(Self {
            delete: u8_at(bytes, 2).ok_or_else(short_of)? & 0x02 != 0,
            offset: u64_at(bytes, 8).ok_or_else(short_of)?,
            token: array_at(bytes, 16).ok_or_else(short_of)?,
            ranges,
        })
    }
}

impl RodToken {
    #[must_use]
    pub fn to_bytes(&self) -> [u8; TOKEN_BYTES] {
        let mut bytes = [0; TOKEN_BYTES];
        bytes[..4].copy_from_slice(&ROD_TYPE.to_be_bytes());
        bytes[6..8].copy_from_slice(&(TOKEN_BYTES as u16 - 8).to_be_bytes());
        bytes[8..16].copy_from_slice(&self.identifier.to_be_bytes());
        bytes[16..48].copy_from_slice(&self.creator.to_bytes());
        bytes[56..64].copy_from_slice(&self.bytes.to_be_bytes());
        bytes[SECRET_AT..SECRET_AT + 32].copy_from_slice(&self.secret);
        bytes
    }

    /// Returns the two fields of a received token that are needed to look it up: its identifier and
    /// the NAA designator of the unit that made it. `None` if Forebay cannot have made the token.
    #[must_use]
    pub fn origin(bytes: &[u8; TOKEN_BYTES]) -> Option<(u64, [u8; 16])> {
        let is_ours = u32_at(bytes, 0)? == ROD_TYPE && u16_at(bytes, 6)? == TOKEN_BYTES as u16 - 8;
        let creator = array_at(bytes, 24)?;
        is_ours.then_some((u64_at(bytes, 8)?, creator))
    }
}

/// Appends the block ranges to a list and sets the two length fields of the list.
fn append_ranges(bytes: &mut Vec<u8>, ranges: &[TokenRange]) {
    let length = u16::try_from(ranges.len() * 16).expect("a list has a few ranges");
    let at = bytes.len() - 2;
    bytes[at..].copy_from_slice(&length.to_be_bytes());
    for range in ranges {
        bytes.extend_from_slice(&range.lba.to_be_bytes());
        bytes.extend_from_slice(&range.blocks.to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
    }
    let all = u16::try_from(bytes.len() - 2).expect("a list has a few ranges");
    bytes[..2].copy_from_slice(&all.to_be_bytes());
}

/// Parses the block ranges that follow the length field at offset `at`.
fn parse_ranges(bytes: &[u8], at: usize) -> Result<Vec<TokenRange>, Sense> {
    let short_of = || Sense::PARAMETER_LIST_LENGTH_ERROR;
    let all = usize::from(u16_at(bytes, 0).ok_or_else(short_of)?) + 2;
    let length = usize::from(u16_at(bytes, at).ok_or_else(short_of)?);
    let end = at + 2 + length;
    if bytes.len() < end || all < end {
        return Err(short_of());
    }
    if length > RANGES * 16 {
        return Err(Sense::invalid_field_in_parameter_list(at as u16));
    }
    let range =
        |bytes: &[u8]| Some(TokenRange { lba: u64_at(bytes, 0)?, blocks: u32_at(bytes, 8)? });
    Ok(bytes[at + 2..end].chunks_exact(16).filter_map(range).collect())
}

/// The offset of the secret, which is in the extended ROD token data.
const SECRET_AT: usize = 256;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges(count: usize) -> Vec<TokenRange> {
        (0..count as u64).map(|lba| TokenRange { lba, blocks: 8 }).collect()
    }

    #[test]
    fn lists_read_back_and_cut_ones_are_refused() {
        let populate = PopulateToken { timeout_s: 9, rod_type: Some(ROD_TYPE), ranges: ranges(3) };
        let bytes = populate.to_bytes();
        assert_eq!(bytes[..4], [0, 62, 2, 0]);
        assert_eq!(PopulateToken::parse(&bytes), Ok(populate));
        let write =
            WriteUsingToken { delete: true, offset: 4, token: [3; TOKEN_BYTES], ranges: ranges(2) };
        assert_eq!(WriteUsingToken::parse(&write.to_bytes()), Ok(write.clone()));
        for length in [0, 1, 15, 16, bytes.len() - 1] {
            assert!(PopulateToken::parse(&bytes[..length]).is_err(), "{length}");
        }
        assert!(WriteUsingToken::parse(&write.to_bytes()[..535]).is_err());
        let many = PopulateToken { timeout_s: 0, rod_type: None, ranges: ranges(RANGES + 1) };
        assert!(PopulateToken::parse(&many.to_bytes()).is_err());
    }

    #[test]
    fn a_rod_token_contains_its_identifier_and_creator() {
        let token = RodToken {
            identifier: 0x0102,
            creator: Cscd::naa([0x60; 16], 512),
            bytes: 4096,
            secret: [9; 32],
        };
        let bytes = token.to_bytes();
        assert_eq!(bytes[..8], [0, 0x80, 0, 1, 0, 0, 1, 0xf8]);
        assert_eq!(RodToken::origin(&bytes), Some((0x0102, [0x60; 16])));
        assert_eq!(RodToken::origin(&[0; TOKEN_BYTES]), None);
    }

    proptest! {
        #[test]
        fn hostile_lists_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..700)) {
            let _ = PopulateToken::parse(&bytes);
            let _ = WriteUsingToken::parse(&bytes);
        }
    }
}
