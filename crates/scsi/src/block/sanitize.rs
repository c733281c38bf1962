//! SANITIZE (SBC-3, 5.20): the CDB, and the parameter list of OVERWRITE.

use crate::{Cdb, Sense, field::be16};

/// The fields of a SANITIZE CDB.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sanitize {
    pub action: SanitizeAction,
    /// IMMED bit: if set, the unit answers when the operation begins, otherwise when it is complete.
    pub immediate: bool,
    /// AUSE: after a failure, the initiator may use EXIT FAILURE MODE.
    pub unrestricted_exit: bool,
    /// The length of the parameter list in bytes; zero unless the action is OVERWRITE.
    pub parameter_list_length: u16,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum SanitizeAction {
    Overwrite = 0x01,
    BlockErase = 0x02,
    CryptographicErase = 0x03,
    ExitFailureMode = 0x1f,
}

/// The parameter list of SANITIZE with the action OVERWRITE.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Overwrite {
    /// INVERT: invert the bits of the pattern from each pass to the next.
    pub invert: bool,
    /// OVERWRITE COUNT, 1 to 31: the number of passes.
    pub passes: u8,
    /// INITIALIZATION PATTERN, from one byte to one block long. It is repeated within a block, and
    /// starts again at each block.
    pub pattern: Vec<u8>,
}

impl Sanitize {
    pub(crate) fn encode(self) -> Cdb {
        let flags = u8::from(self.immediate) << 7 | u8::from(self.unrestricted_exit) << 5;
        let [high, low] = self.parameter_list_length.to_be_bytes();
        Cdb::new(&[0x48, flags | self.action as u8, 0, 0, 0, 0, 0, high, low, 0])
    }

    /// Parses a CDB of 10 bytes. Reserved fields must be zero: SANITIZE destroys all data, so a CDB
    /// that may have another meaning must not start it.
    pub(crate) fn parse(cdb: &[u8]) -> Result<Self, Sense> {
        let action = match cdb[1] & 0x1f {
            0x01 => SanitizeAction::Overwrite,
            0x02 => SanitizeAction::BlockErase,
            0x03 => SanitizeAction::CryptographicErase,
            0x1f => SanitizeAction::ExitFailureMode,
            _ => return Err(Sense::invalid_bit_in_cdb(1, 4)),
        };
        if cdb[1] & 0x40 != 0 {
            return Err(Sense::invalid_bit_in_cdb(1, 6));
        }
        if let Some(at) = (2..7).find(|at| cdb[*at] != 0) {
            return Err(Sense::invalid_field_in_cdb(at as u16));
        }
        let parameter_list_length = be16(cdb, 7);
        if action != SanitizeAction::Overwrite && parameter_list_length != 0 {
            return Err(Sense::invalid_field_in_cdb(7));
        }
        Ok(Self {
            action,
            immediate: cdb[1] & 0x80 != 0,
            unrestricted_exit: cdb[1] & 0x20 != 0,
            parameter_list_length,
        })
    }
}

impl Overwrite {
    /// Encodes the parameter list of OVERWRITE.
    ///
    /// # Panics
    /// If the pattern is longer than 65,535 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let length = u16::try_from(self.pattern.len()).expect("a pattern is at most a block");
        let [high, low] = length.to_be_bytes();
        let first = u8::from(self.invert) << 7 | self.passes & 0x1f;
        [&[first, 0, high, low], &self.pattern[..]].concat()
    }

    /// Parses the parameter list of OVERWRITE for a unit with blocks of `block_size` bytes. Ignores
    /// the TEST field.
    ///
    /// # Errors
    /// 5/26/00 for zero passes, and for a pattern that is empty, longer than a block, or truncated;
    /// 5/1A/00 for fewer than four bytes.
    pub fn parse(bytes: &[u8], block_size: u32) -> Result<Self, Sense> {
        let Some((&[first, _, high, low], rest)) = bytes.split_first_chunk() else {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        };
        let passes = first & 0x1f;
        if passes == 0 {
            return Err(Sense::invalid_field_in_parameter_list(0));
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        let pattern =
            rest.get(..length).filter(|p| !p.is_empty() && p.len() <= block_size as usize);
        let pattern = pattern.ok_or(Sense::invalid_field_in_parameter_list(2))?;
        Ok(Self { invert: first & 0x80 != 0, passes, pattern: pattern.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overwrite_list_is_decoded_as_encoded_and_inconsistent_lists_are_refused() {
        let list = Overwrite { invert: true, passes: 3, pattern: vec![0xaa, 0x55] };
        let bytes = list.to_bytes();
        assert_eq!(bytes, [0x83, 0, 0, 2, 0xaa, 0x55]);
        assert_eq!(Overwrite::parse(&bytes, 512), Ok(list));
        assert!(Overwrite::parse(&bytes, 1).is_err(), "longer than a block");
        assert!(Overwrite::parse(&bytes[..5], 512).is_err(), "not whole");
        assert!(Overwrite::parse(&[0x80, 0, 0, 1, 1], 512).is_err(), "no pass");
        assert!(Overwrite::parse(&[1, 0, 0, 0, 1], 512).is_err(), "no pattern");
        assert_eq!(Overwrite::parse(&[1, 0, 0], 512), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
    }

    #[test]
    fn reserved_fields_and_unknown_actions_are_refused() {
        let cdb = |action| [0x48, action, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(Sanitize::parse(&cdb(0x02)).is_ok());
        for refused in [0x00, 0x04, 0x1e, 0x42] {
            assert!(Sanitize::parse(&cdb(refused)).is_err(), "{refused:x}");
        }
        let mut reserved = cdb(0x02);
        reserved[4] = 1;
        assert_eq!(Sanitize::parse(&reserved), Err(Sense::invalid_field_in_cdb(4)));
        let mut listed = cdb(0x1f);
        listed[8] = 8;
        assert_eq!(Sanitize::parse(&listed), Err(Sense::invalid_field_in_cdb(7)));
    }
}
