//! Sense data as bytes, in fixed format (SPC-4, 4.5.3) and in descriptor format (SPC-4, 4.5.2).

use super::{FieldPointer, Sense, SenseKey};
use crate::field::{body, u16_at, u32_at, u64_at};

impl Sense {
    /// Encodes the sense data in fixed format (SPC-4, 4.5.3). Uses descriptor format instead if
    /// `descriptor_format` is set, if there is COMMAND-SPECIFIC INFORMATION, or if INFORMATION
    /// exceeds the 32 bits that fixed format has for it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self.information {
            _ if self.descriptor_format || self.command_specific.is_some() => {
                self.to_descriptor_bytes()
            }
            Some(information) if information > u64::from(u32::MAX) => self.to_descriptor_bytes(),
            _ => self.to_fixed_bytes(),
        }
    }

    /// Encodes the sense data in fixed format, 18 bytes. INFORMATION above 32 bits is omitted, and
    /// so is COMMAND-SPECIFIC INFORMATION.
    #[must_use]
    pub fn to_fixed_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 18];
        bytes[0] = if self.deferred { FIXED_DEFERRED } else { FIXED_CURRENT };
        bytes[2] = self.key as u8;
        if let Some(information) = self.information.and_then(|i| u32::try_from(i).ok()) {
            bytes[0] |= VALID;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        bytes[7] = 10;
        bytes[12] = self.asc;
        bytes[13] = self.ascq;
        if let Some(specific) = self.key_specific() {
            bytes[15..18].copy_from_slice(&specific);
        }
        bytes
    }

    /// Encodes the sense data in descriptor format (SPC-4, 4.5.2), 8 to 40 bytes.
    #[must_use]
    pub fn to_descriptor_bytes(&self) -> Vec<u8> {
        let code = if self.deferred { DESCRIPTOR_DEFERRED } else { DESCRIPTOR_CURRENT };
        let mut bytes = vec![code, self.key as u8, self.asc, self.ascq, 0, 0, 0, 0];
        if let Some(information) = self.information {
            bytes.extend_from_slice(&[INFORMATION_DESCRIPTOR, 10, VALID, 0]);
            bytes.extend_from_slice(&information.to_be_bytes());
        }
        if let Some(value) = self.command_specific {
            bytes.extend_from_slice(&[COMMAND_SPECIFIC_DESCRIPTOR, 10, 0, 0]);
            bytes.extend_from_slice(&value.to_be_bytes());
        }
        if let Some(specific) = self.key_specific() {
            bytes.extend_from_slice(&[KEY_SPECIFIC_DESCRIPTOR, 6, 0, 0]);
            bytes.extend_from_slice(&specific);
            bytes.push(0);
        }
        bytes[7] = (bytes.len() - 8) as u8;
        bytes
    }

    /// Returns the three bytes of sense key specific data: field pointer or progress indication.
    fn key_specific(&self) -> Option<[u8; 3]> {
        let progress = |progress: u16| {
            let [high, low] = progress.to_be_bytes();
            [SENSE_KEY_SPECIFIC_VALID, high, low]
        };
        self.field.map(FieldPointer::to_bytes).or(self.progress.map(progress))
    }

    /// Parses sense data of either format, current or deferred. Returns `None` for another response
    /// code, and if the bytes end before the sense key. Missing fields become zero or `None`.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let code = bytes.first()? & 0x7f;
        let sense = match code {
            FIXED_CURRENT | FIXED_DEFERRED => Self::from_fixed_bytes(bytes),
            DESCRIPTOR_CURRENT | DESCRIPTOR_DEFERRED => Self::from_descriptor_bytes(bytes),
            _ => None,
        }?;
        Some(Self { deferred: matches!(code, FIXED_DEFERRED | DESCRIPTOR_DEFERRED), ..sense })
    }

    fn from_fixed_bytes(bytes: &[u8]) -> Option<Self> {
        let key = SenseKey::from_byte(*bytes.get(2)?)?;
        let claimed = bytes.get(7).map_or(bytes.len(), |&additional| 8 + usize::from(additional));
        let bytes = &bytes[..claimed.min(bytes.len())];
        let byte_at = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let mut sense = Self::new(key, byte_at(12), byte_at(13));
        if bytes[0] & VALID != 0 {
            sense.information = u32_at(bytes, 3).map(u64::from);
        }
        sense.field = field_of(key, bytes.get(15..18));
        sense.progress = progress_of(key, bytes.get(15..18));
        Some(sense)
    }

    fn from_descriptor_bytes(bytes: &[u8]) -> Option<Self> {
        let key = SenseKey::from_byte(*bytes.get(1)?)?;
        let byte_at = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let mut sense = Self::new(key, byte_at(2), byte_at(3));
        for SenseDescriptor { kind, body: descriptor, .. } in descriptors(bytes) {
            match kind {
                INFORMATION_DESCRIPTOR if descriptor.first().is_some_and(|b| b & VALID != 0) => {
                    sense.information = u64_at(descriptor, 2);
                }
                COMMAND_SPECIFIC_DESCRIPTOR => sense.command_specific = u64_at(descriptor, 2),
                KEY_SPECIFIC_DESCRIPTOR => {
                    sense.field = field_of(key, descriptor.get(2..5));
                    sense.progress = progress_of(key, descriptor.get(2..5));
                }
                _ => {}
            }
        }
        Some(sense)
    }
}

/// A descriptor of sense data in descriptor format.
pub(super) struct SenseDescriptor<'a> {
    pub(super) kind: u8,
    /// The offset in the sense data of the bytes after the type and length of the descriptor.
    pub(super) at: usize,
    /// The bytes after the type and length of the descriptor.
    pub(super) body: &'a [u8],
}

/// Returns the descriptors of sense data, up to the first one that is incomplete. Returns none for
/// sense data in fixed format.
pub(super) fn descriptors(bytes: &[u8]) -> impl Iterator<Item = SenseDescriptor<'_>> {
    let code = bytes.first().map_or(0, |code| code & 0x7f);
    let has_descriptors = matches!(code, DESCRIPTOR_CURRENT | DESCRIPTOR_DEFERRED);
    let length = bytes.get(7).map_or(0, |&length| usize::from(length));
    let mut rest = if has_descriptors { body(bytes, DESCRIPTORS, length) } else { &[] };
    let mut at = DESCRIPTORS;
    std::iter::from_fn(move || {
        let [kind, length, following @ ..] = rest else { return None };
        let (body, after) = following.split_at_checked(usize::from(*length))?;
        let descriptor = SenseDescriptor { kind: *kind, at: at + 2, body };
        at += 2 + body.len();
        rest = after;
        Some(descriptor)
    })
}

impl FieldPointer {
    fn to_bytes(self) -> [u8; 3] {
        let [high, low] = self.byte.to_be_bytes();
        let in_cdb = if self.in_cdb { 0x40 } else { 0 };
        let bit = self.bit.map_or(0, |bit| 0x08 | bit & 0x07);
        [SENSE_KEY_SPECIFIC_VALID | in_cdb | bit, high, low]
    }
}

/// Reads a field pointer from the three bytes of sense key specific data. Returns `None` if the
/// bytes do not hold a field pointer.
fn field_of(key: SenseKey, bytes: Option<&[u8]>) -> Option<FieldPointer> {
    let bytes = bytes?;
    let flags = *bytes.first()?;
    if key != SenseKey::IllegalRequest || flags & SENSE_KEY_SPECIFIC_VALID == 0 {
        return None;
    }
    let bit = (flags & 0x08 != 0).then_some(flags & 0x07);
    Some(FieldPointer { in_cdb: flags & 0x40 != 0, byte: u16_at(bytes, 1)?, bit })
}

/// Reads a progress indication from the three bytes of sense key specific data. Returns `None` if
/// the bytes do not hold one.
fn progress_of(key: SenseKey, bytes: Option<&[u8]>) -> Option<u16> {
    let bytes = bytes?;
    let told = matches!(key, SenseKey::NoSense | SenseKey::NotReady)
        && *bytes.first()? & SENSE_KEY_SPECIFIC_VALID != 0;
    if told { u16_at(bytes, 1) } else { None }
}

/// Response codes of sense data (SPC-4, table 27).
const FIXED_CURRENT: u8 = 0x70;
const FIXED_DEFERRED: u8 = 0x71;
const DESCRIPTOR_CURRENT: u8 = 0x72;
const DESCRIPTOR_DEFERRED: u8 = 0x73;
/// The bit VALID in byte 0: the INFORMATION field is valid.
const VALID: u8 = 0x80;
/// Sense data descriptor types (SPC-4, table 29).
const INFORMATION_DESCRIPTOR: u8 = 0x00;
const COMMAND_SPECIFIC_DESCRIPTOR: u8 = 0x01;
const KEY_SPECIFIC_DESCRIPTOR: u8 = 0x02;
/// The offset of the first descriptor in sense data of descriptor format.
const DESCRIPTORS: usize = 8;
/// The SKSV bit: the sense key specific data is valid.
const SENSE_KEY_SPECIFIC_VALID: u8 = 0x80;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fixed_format_byte_by_byte() {
        let sense = Sense::invalid_bit_in_cdb(1, 5);
        assert_eq!(
            sense.to_bytes(),
            [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcd, 0, 1]
        );
        let medium = Sense::UNRECOVERED_READ_ERROR.with_information(0x0102_0304);
        assert_eq!(&medium.to_bytes()[..8], [0xf0, 0, 3, 1, 2, 3, 4, 10]);
    }

    #[test]
    fn descriptor_format_when_the_information_needs_it() {
        let sense = Sense::WRITE_ERROR.with_information(0x1_0000_0000);
        assert_eq!(
            sense.to_bytes(),
            [0x72, 3, 0x0c, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0]
        );
    }

    #[test]
    fn descriptor_format_when_it_is_asked_for() {
        let sense = Sense { descriptor_format: true, ..Sense::WRITE_PROTECTED };
        assert_eq!(sense.to_bytes(), [0x72, 7, 0x27, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn command_specific_information_needs_descriptor_format() {
        let sense = Sense::new(SenseKey::RecoveredError, 0x3b, 0x17).with_command_specific(0x102);
        assert_eq!(
            sense.to_bytes(),
            [0x72, 1, 0x3b, 0x17, 0, 0, 0, 12, 1, 10, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]
        );
        assert_eq!(Sense::from_bytes(&sense.to_fixed_bytes()).unwrap().command_specific, None);
    }

    #[test]
    fn a_deferred_error_is_distinguished_from_an_error_of_the_command() {
        let error = Sense::WRITE_ERROR;
        let told = |code: u8, mut bytes: Vec<u8>| {
            bytes[0] = code;
            Sense::from_bytes(&bytes).unwrap()
        };
        let deferred = Sense { deferred: true, ..error };
        assert_eq!(told(0x70, error.to_fixed_bytes()), error);
        assert_eq!(told(0x71, error.to_fixed_bytes()), deferred);
        assert!(told(0xf1, error.to_fixed_bytes()).deferred);
        assert_eq!(told(0x72, error.to_descriptor_bytes()), error);
        assert_eq!(told(0x73, error.to_descriptor_bytes()), deferred);
        assert!(deferred.to_string().starts_with("deferred MediumError"), "{deferred}");
    }

    #[test]
    fn truncated_sense_data_still_has_its_key() {
        assert_eq!(Sense::from_bytes(&[0x70, 0, 2]), Some(Sense::new(SenseKey::NotReady, 0, 0)));
        assert_eq!(Sense::from_bytes(&[0x70, 0]), None);
        assert_eq!(Sense::from_bytes(&[0x72, 6]), Some(Sense::new(SenseKey::UnitAttention, 0, 0)));
        assert_eq!(Sense::from_bytes(&[]), None);
        assert_eq!(Sense::from_bytes(&[0x7f; 18]), None);
    }

    #[test]
    fn a_sense_descriptor_with_a_wrong_length_is_ignored() {
        let mut bytes = Sense::WRITE_ERROR.with_information(7).to_descriptor_bytes();
        bytes[9] = 200;
        assert_eq!(Sense::from_bytes(&bytes), Some(Sense::WRITE_ERROR));
    }

    fn any_sense() -> impl Strategy<Value = Sense> {
        let field = (any::<bool>(), any::<u16>(), proptest::option::of(0u8..8))
            .prop_map(|(in_cdb, byte, bit)| FieldPointer { in_cdb, byte, bit });
        let key = (0u8..16).prop_filter_map("obsolete", SenseKey::from_byte);
        let information = proptest::option::of(any::<u64>());
        let progress = proptest::option::of(any::<u16>());
        let code = (any::<u8>(), any::<u8>());
        let information = (information, proptest::option::of(any::<u64>()));
        (key, code, information, proptest::option::of(field), progress, any::<bool>()).prop_map(
            |(key, (asc, ascq), (information, command_specific), field, progress, deferred)| {
                Sense {
                    key,
                    asc,
                    ascq,
                    information,
                    field: field.filter(|_| key == SenseKey::IllegalRequest),
                    progress: progress
                        .filter(|_| matches!(key, SenseKey::NoSense | SenseKey::NotReady)),
                    command_specific,
                    descriptor_format: false,
                    deferred,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn both_formats_read_back(sense in any_sense()) {
            prop_assert_eq!(Sense::from_bytes(&sense.to_bytes()), Some(sense));
            prop_assert_eq!(Sense::from_bytes(&sense.to_descriptor_bytes()), Some(sense));
            let fits = Sense {
                information: sense.information.filter(|&i| i <= u64::from(u32::MAX)),
                command_specific: None,
                ..sense
            };
            prop_assert_eq!(Sense::from_bytes(&sense.to_fixed_bytes()), Some(fits));
        }

        #[test]
        fn hostile_sense_data_does_no_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..64),
                                           format in 0x70u8..0x74) {
            let _ = Sense::from_bytes(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = format;
            }
            let _ = Sense::from_bytes(&bytes);
        }
    }
}
