//! The record of a SANITIZE that has begun and has not succeeded yet. `docs/formats/state.md` has its bytes.

use scsi::Overwrite;

use super::method::Method;

/// A SANITIZE that is running or has failed, as stored for the next start of the unit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Unfinished {
    /// The method of work that continues after the restart; `None` if the SANITIZE has failed.
    pub(super) method: Option<Method>,
    /// AUSE bit: EXIT FAILURE MODE may end the state of failure.
    pub(super) unrestricted_exit: bool,
}

impl Unfinished {
    pub(super) fn to_record(&self) -> Vec<u8> {
        let (kind, invert, passes, pattern): (_, _, _, &[u8]) = match &self.method {
            None => (FAILED, false, 0, &[]),
            Some(Method::BlockErase) => (BLOCK_ERASE, false, 0, &[]),
            Some(Method::CryptographicErase) => (CRYPTOGRAPHIC_ERASE, false, 0, &[]),
            Some(Method::Overwrite(list)) => (OVERWRITE, list.invert, list.passes, &list.pattern),
        };
        let flags = u8::from(self.unrestricted_exit) | u8::from(invert) << 1;
        let mut bytes = vec![VERSION, kind, flags, passes];
        bytes.extend_from_slice(pattern);
        bytes
    }

    /// Parses a record that is not empty. `block_size` is the unit's. `None` if the record is invalid.
    pub(super) fn from_record(bytes: &[u8], block_size: u32) -> Option<Self> {
        let (&[version, kind, flags, passes], pattern) = bytes.split_first_chunk()?;
        if version != VERSION || flags > 3 {
            return None;
        }
        let invert = flags & 2 != 0;
        let method = match kind {
            OVERWRITE if (1..32).contains(&passes) && !pattern.is_empty() => {
                // The unit may have smaller blocks now than when the record was written: cut the pattern to
                // one block.
                let length = pattern.len().min(block_size as usize);
                let pattern = pattern[..length].to_vec();
                Some(Method::Overwrite(Overwrite { invert, passes, pattern }))
            }
            _ if invert || passes != 0 || !pattern.is_empty() => return None,
            BLOCK_ERASE => Some(Method::BlockErase),
            CRYPTOGRAPHIC_ERASE => Some(Method::CryptographicErase),
            FAILED => None,
            _ => return None,
        };
        Some(Self { method, unrestricted_exit: flags & 1 != 0 })
    }
}

const VERSION: u8 = 1;
/// Kinds of record: the service actions (SBC-3, 5.20), and 0 for a failed SANITIZE.
const OVERWRITE: u8 = 1;
const BLOCK_ERASE: u8 = 2;
const CRYPTOGRAPHIC_ERASE: u8 = 3;
const FAILED: u8 = 0;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn records() -> [(Unfinished, &'static [u8]); 4] {
        let list = Overwrite { invert: true, passes: 3, pattern: vec![0xaa, 0x55] };
        let unfinished = |method, unrestricted_exit| Unfinished { method, unrestricted_exit };
        [
            (unfinished(Some(Method::Overwrite(list)), true), &[1, 1, 3, 3, 0xaa, 0x55]),
            (unfinished(Some(Method::BlockErase), false), &[1, 2, 0, 0]),
            (unfinished(Some(Method::CryptographicErase), false), &[1, 3, 0, 0]),
            (unfinished(None, true), &[1, 0, 1, 0]),
        ]
    }

    #[test]
    fn records_are_encoded_byte_by_byte_and_decoded_again() {
        for (unfinished, bytes) in records() {
            assert_eq!(unfinished.to_record(), bytes);
            assert_eq!(Unfinished::from_record(bytes, 512), Some(unfinished));
        }
    }

    #[test]
    fn an_inconsistent_record_is_refused() {
        for lie in [
            &[1, 1, 0, 0, 7][..],
            &[1, 1, 0, 32, 7],
            &[1, 1, 0, 1],
            &[2, 2, 0, 0],
            &[1, 4, 0, 0],
            &[1, 3, 0, 1],
            &[1, 2, 4, 0],
            &[1, 2, 0, 0, 0],
            &[1, 0, 0],
        ] {
            assert_eq!(Unfinished::from_record(lie, 512), None, "{lie:?}");
        }
    }

    proptest! {
        #[test]
        fn hostile_records_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Unfinished::from_record(&bytes, 512);
        }
    }
}
