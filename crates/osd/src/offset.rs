//! Offsets in the Data-Out and Data-In buffers of a command (OSD-2, 5.2.2).
//!
//! A 32-bit field holds a mantissa of 28 bits and a signed exponent of 4 bits. The offset is
//! mantissa · 2^(exponent + 8). FFFFFFFFh means that the field is not used.

/// Value of an offset field that is not used.
pub const UNUSED: u32 = u32::MAX;
/// The smallest exponent. With it the unit of an offset is 8 bytes.
const MIN_EXPONENT: i32 = -5;
const MANTISSA_BITS: u32 = 28;
const MANTISSA_MASK: u32 = (1 << MANTISSA_BITS) - 1;

/// The field has an exponent below the minimum, and is not [`UNUSED`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("offset {0:08X}h has an exponent below -5")]
pub struct InvalidOffset(pub u32);

/// Decodes an offset field to bytes. Returns `None` for [`UNUSED`].
///
/// # Errors
/// The exponent is below -5, but the field is not [`UNUSED`].
pub fn decode(field: u32) -> Result<Option<u64>, InvalidOffset> {
    if field == UNUSED {
        return Ok(None);
    }
    let mantissa = u64::from(field & MANTISSA_MASK);
    // The arithmetic shift copies the sign bit of the exponent.
    let exponent = field as i32 >> MANTISSA_BITS;
    if exponent < MIN_EXPONENT {
        return Err(InvalidOffset(field));
    }
    Ok(Some(mantissa << (exponent + 8)))
}

/// Encodes an offset with the smallest exponent that fits. Returns `None` if no exponent represents
/// it exactly: an offset must be a multiple of 8, and a large one of a larger power of 2.
#[must_use]
pub fn encode(offset: u64) -> Option<u32> {
    (MIN_EXPONENT..=7).find_map(|exponent| {
        let shift = (exponent + 8) as u32;
        let mantissa = offset >> shift;
        let fits = mantissa <= u64::from(MANTISSA_MASK) && mantissa << shift == offset;
        let field = (exponent as u32) << MANTISSA_BITS | mantissa as u32;
        (fits && field != UNUSED).then_some(field)
    })
}

/// Returns the smallest offset that is not below `offset` and that [`encode`] can encode. Returns
/// `None` above the largest offset.
#[must_use]
pub fn next(offset: u64) -> Option<u64> {
    (MIN_EXPONENT..=7).find_map(|exponent| {
        let unit = 1u64 << (exponent + 8);
        let rounded = offset.checked_next_multiple_of(unit)?;
        encode(rounded).is_some().then_some(rounded)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn offsets_match_those_of_the_linux_initiator() {
        assert_eq!(encode(4096), Some(0xb000_0200));
        assert_eq!(encode(4168), Some(0xb000_0209));
        assert_eq!(decode(0xb000_0209), Ok(Some(4168)));
        assert_eq!(decode(0x0000_0001), Ok(Some(256)));
        assert_eq!(decode(0x7000_0001), Ok(Some(1 << 15)));
        assert_eq!(decode(UNUSED), Ok(None));
    }

    #[test]
    fn an_exponent_below_the_minimum_is_refused() {
        for field in [0xa000_0001, 0x8000_0000, 0xf00_0000 | 0x9000_0000] {
            assert_eq!(decode(field), Err(InvalidOffset(field)), "{field:08x}");
        }
        assert_eq!(decode(0xffff_fffe), Ok(Some(0x0fff_fffe << 7)));
    }

    #[test]
    fn an_offset_that_is_no_multiple_of_eight_has_no_encoding() {
        assert_eq!(encode(4), None);
        assert_eq!(next(4), Some(8));
        assert_eq!(next((0x0fff_ffff << 3) + 1), Some(0x1000_0000 << 3));
        assert_eq!(next(u64::MAX), None);
    }

    proptest! {
        #[test]
        fn an_encoded_offset_decodes_to_itself(offset in 0u64..1 << 43) {
            let rounded = next(offset).unwrap();
            prop_assert!(rounded >= offset && rounded - offset < 1 << 15);
            prop_assert_eq!(decode(encode(rounded).unwrap()), Ok(Some(rounded)));
        }
    }
}
