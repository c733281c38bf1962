//! Parameter data of GET LBA STATUS (SBC-3, 5.6).

use crate::field::{body, u8_at, u32_at, u64_at};

/// The provisioning status of a range of blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LbaStatus {
    pub lba: u64,
    pub blocks: u32,
    /// True if the blocks are mapped or anchored, or if their status is unknown. False if they are
    /// deallocated.
    pub mapped: bool,
}

/// Encodes the parameter data of GET LBA STATUS: a header, and these descriptors.
#[must_use]
pub fn lba_status_list(descriptors: impl IntoIterator<Item = LbaStatus>) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    for descriptor in descriptors {
        bytes.extend_from_slice(&descriptor.lba.to_be_bytes());
        bytes.extend_from_slice(&descriptor.blocks.to_be_bytes());
        let status = if descriptor.mapped { MAPPED } else { DEALLOCATED };
        bytes.extend_from_slice(&[status, 0, 0, 0]);
    }
    // The header field PARAMETER DATA LENGTH does not count its own four bytes.
    let length = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Parses GET LBA STATUS parameter data of another target, in which every field may be wrong. Skips
/// truncated descriptors, whatever the length field says. The caller must check that the
/// descriptors are about the blocks that it has requested.
pub fn parse_lba_status_list(bytes: &[u8]) -> impl Iterator<Item = LbaStatus> + '_ {
    let length = u32_at(bytes, 0).map_or(0, |length| (length as usize).saturating_sub(4));
    body(bytes, 8, length).chunks_exact(16).map(|descriptor| LbaStatus {
        lba: u64_at(descriptor, 0).expect(WHOLE),
        blocks: u32_at(descriptor, 8).expect(WHOLE),
        // Report an anchored block as mapped, because storage is reserved for it.
        mapped: u8_at(descriptor, 12).expect(WHOLE) & 0x0f != DEALLOCATED,
    })
}

const WHOLE: &str = "chunks are 16 bytes";
/// Values of PROVISIONING STATUS (SBC-3, table 42).
const MAPPED: u8 = 0;
const DEALLOCATED: u8 = 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_list_byte_by_byte() {
        let list = lba_status_list([LbaStatus { lba: 0x0102, blocks: 3, mapped: false }]);
        assert_eq!(list[..8], [0, 0, 0, 20, 0, 0, 0, 0]);
        assert_eq!(list[8..], [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, 1, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn lists_read_back(all in proptest::collection::vec(any::<(u64, u32, bool)>(), 0..40)) {
            let all: Vec<_> = all
                .into_iter()
                .map(|(lba, blocks, mapped)| LbaStatus { lba, blocks, mapped })
                .collect();
            let list = lba_status_list(all.iter().copied());
            prop_assert_eq!(parse_lba_status_list(&list).collect::<Vec<_>>(), all);
        }

        // In CVE-2020-1711, QEMU trusted the block counts in GET LBA STATUS data.
        #[test]
        fn hostile_lists_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(parse_lba_status_list(&bytes).count() * 16 <= bytes.len());
        }
    }
}
