//! The parameter list of UNMAP (SBC-3, 5.28.2).

use crate::{
    Sense,
    field::{body, u16_at, u32_at, u64_at},
};

/// A range of blocks to deallocate; empty if `blocks` is zero.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UnmapDescriptor {
    pub lba: u64,
    pub blocks: u32,
}

/// Encodes the parameter list of UNMAP.
///
/// # Panics
/// If there are more than 4,094 descriptors, the most that the length fields of the list can
/// express.
#[must_use]
pub fn unmap_list(descriptors: &[UnmapDescriptor]) -> Vec<u8> {
    let length = u16::try_from(descriptors.len() * 16).ok().filter(|n| *n <= u16::MAX - 15);
    let length = length.expect("an unmap list has at most 4,094 descriptors");
    let mut bytes = Vec::with_capacity(8 + usize::from(length));
    bytes.extend_from_slice(&(length + 6).to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    for descriptor in descriptors {
        bytes.extend_from_slice(&descriptor.lba.to_be_bytes());
        bytes.extend_from_slice(&descriptor.blocks.to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
    }
    bytes
}

/// Parses the parameter list of UNMAP. Ignores truncated descriptors, as the standard requires, and
/// descriptors beyond one of the two length fields of the list.
///
/// # Errors
/// 5/1A/00 for fewer than the eight bytes of the header.
pub fn parse_unmap_list(
    bytes: &[u8],
) -> Result<impl ExactSizeIterator<Item = UnmapDescriptor> + Clone + '_, Sense> {
    let data = u16_at(bytes, 0).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    let descriptors = u16_at(bytes, 2).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    if bytes.len() < 8 {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
    }
    // The field UNMAP DATA LENGTH counts the bytes after itself, which include six bytes of the
    // header.
    let length = usize::from(descriptors).min(usize::from(data).saturating_sub(6));
    Ok(body(bytes, 8, length).chunks_exact(16).map(|descriptor| UnmapDescriptor {
        lba: u64_at(descriptor, 0).expect("chunks are 16 bytes"),
        blocks: u32_at(descriptor, 8).expect("chunks are 16 bytes"),
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(bytes: &[u8]) -> Vec<UnmapDescriptor> {
        parse_unmap_list(bytes).unwrap().collect()
    }

    #[test]
    fn the_shortest_of_all_length_fields_is_used() {
        let two = [UnmapDescriptor { lba: 1, blocks: 2 }, UnmapDescriptor { lba: 3, blocks: 4 }];
        let bytes = unmap_list(&two);
        assert_eq!(bytes[..4], [0, 38, 0, 32]);
        assert_eq!(parsed(&bytes), two);
        assert_eq!(parsed(&bytes[..39]), two[..1]);
        let mut shorter = bytes.clone();
        shorter[3] = 31;
        assert_eq!(parsed(&shorter), two[..1]);
        let mut shorter = bytes.clone();
        shorter[1] = 5;
        assert_eq!(parsed(&shorter), []);
        let mut longer = bytes;
        longer[..4].copy_from_slice(&[0xff; 4]);
        assert_eq!(parsed(&longer), two);
    }

    #[test]
    fn less_than_a_header_is_an_error() {
        assert!(parse_unmap_list(&[0, 6, 0, 0, 0, 0, 0]).is_err());
        assert_eq!(parsed(&[0; 8]), []);
    }

    proptest! {
        #[test]
        fn lists_read_back(pairs in proptest::collection::vec(any::<(u64, u32)>(), 0..300)) {
            let descriptors: Vec<_> = pairs
                .into_iter()
                .map(|(lba, blocks)| UnmapDescriptor { lba, blocks })
                .collect();
            prop_assert_eq!(parsed(&unmap_list(&descriptors)), descriptors);
        }

        #[test]
        fn hostile_lists_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(list) = parse_unmap_list(&bytes) {
                prop_assert!(list.len() * 16 + 8 <= bytes.len());
            }
        }
    }
}
