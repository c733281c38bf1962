//! The limits on the size of a single command of a block unit.

use volume::Geometry;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Settings {
    /// Maximum number of bytes of one READ, WRITE, VERIFY or WRITE SAME; at least one physical block. The data of a
    /// READ and of a WRITE is held in memory.
    pub maximum_transfer_bytes: u32,
    /// Transfer length in bytes that the unit recommends to initiators. Linux never asks for more than this.
    pub optimal_transfer_bytes: u32,
    /// Maximum number of bytes that a single UNMAP command may unmap.
    pub maximum_unmap_bytes: u32,
    /// True if a WRITE SAME of zero blocks writes to the end of the unit (WSNZ=0); otherwise it is refused.
    pub write_same_to_end: bool,
    /// True if the medium can be removed (RMB): START STOP UNIT ejects and loads it.
    pub removable: bool,
    /// Soft threshold of a thin volume, 1 to 100: the percentage of used space above which initiators get a
    /// unit attention condition. `None`: no threshold.
    pub soft_threshold_percent: Option<u8>,
    /// Bytes of a physical block as reported to initiators; `None`: the value of the volume. A power of two,
    /// from the size of a logical block to the volume's value.
    pub physical_block_bytes: Option<u32>,
    /// True if INQUIRY claims SPC-3 in place of SPC-4, for initiators that know nothing newer. The unit then follows
    /// SPC-3 where its rules differ.
    pub spc_3: bool,
    /// True if other initiators may read the unit while a cache has claimed it. They get an older state, which is
    /// consistent.
    pub reads_beside_claim: bool,
    /// Several gateways write to the unit, each to the ranges for which it has coherence tokens.
    pub share: Option<Share>,
    /// True if this unit is one of several gateways to the same blocks. The unit then refuses commands that must take
    /// effect for all initiators at once, such as reservations and COMPARE AND WRITE.
    pub is_one_of_many: bool,
}

/// The terms on which gateways share a unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Share {
    /// Size in bytes of the ranges for which coherence tokens are granted: whole blocks, at least one.
    pub grain_bytes: u32,
    /// Milliseconds without a message after which the node takes back a gateway's read tokens; 1000 to
    /// 3,600,000.
    pub lease_ms: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // About the limit of tgt and LIO: 32,768 blocks of 512 bytes.
            maximum_transfer_bytes: 16 << 20,
            // The MaxBurstLength that the target offers: the data of such a command is one burst.
            optimal_transfer_bytes: 1 << 20,
            // Short enough that other commands do not wait long for the volume below while it unmaps the blocks.
            maximum_unmap_bytes: 64 << 20,
            // Same default as LIO. With it a length of zero writes nothing: an initiator that sends zero by mistake
            // loses no data, and one that wants to write up to the end can send the exact length.
            write_same_to_end: false,
            removable: false,
            soft_threshold_percent: None,
            physical_block_bytes: None,
            spc_3: false,
            // Other initiators may read an older but consistent state during a claim, which suffices for a backup.
            reads_beside_claim: true,
            share: None,
            is_one_of_many: false,
        }
    }
}

/// Maximum number of bytes that one ROD token represents: a WRITE USING TOKEN of this length takes
/// some seconds.
pub(crate) const TOKEN_BYTES_MOST: u64 = 256 << 20;
/// Seconds that an unused ROD token stays valid: by default, and at most.
pub(crate) const TOKEN_TIMEOUT_S: u32 = 60;
pub(crate) const TOKEN_TIMEOUT_S_MOST: u32 = 600;

/// The limits on the length of commands, in logical blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct UnitBlockLimits {
    /// Maximum number of blocks of a read, a write or a WRITE SAME.
    pub(crate) maximum_blocks: u32,
    pub(crate) optimal_blocks: u32,
    /// Maximum number of blocks of an UNMAP command; 0 without thin provisioning.
    pub(crate) unmap_blocks: u32,
    /// Maximum number of block descriptors of an UNMAP command.
    pub(crate) unmap_descriptors: u32,
    /// Number of logical blocks in a physical block.
    pub(crate) physical_blocks: u32,
    /// Granularity in which UNMAP frees space, in blocks.
    pub(crate) unmap_granularity: u32,
    /// Maximum number of blocks of a COMPARE AND WRITE command.
    pub(crate) compare_and_write_blocks: u8,
    /// Maximum number of blocks of one WRITE ATOMIC; zero if the unit does not support it.
    pub(crate) atomic_blocks: u32,
    /// Alignment and granularity of a WRITE ATOMIC, in blocks.
    pub(crate) atomic_granularity: u32,
    /// True if a WRITE SAME of zero blocks writes to the end of the unit, see
    /// [`Settings::write_same_to_end`].
    pub(crate) write_same_to_end: bool,
}

impl UnitBlockLimits {
    pub(crate) fn new(settings: &Settings, geometry: &Geometry) -> Self {
        let blocks = |bytes: u32| (bytes / geometry.block_size).max(1);
        let below = blocks(geometry.physical_block_size);
        let physical_blocks = settings.physical_block_bytes.map_or(below, blocks);
        let whole = |bytes| {
            let blocks = blocks(bytes);
            (blocks - blocks % physical_blocks).max(physical_blocks)
        };
        let maximum_blocks = whole(settings.maximum_transfer_bytes);
        Self {
            maximum_blocks,
            optimal_blocks: whole(settings.optimal_transfer_bytes).min(maximum_blocks),
            unmap_blocks: if geometry.thin { whole(settings.maximum_unmap_bytes) } else { 0 },
            unmap_descriptors: if geometry.thin { UNMAP_DESCRIPTORS } else { 0 },
            physical_blocks,
            unmap_granularity: blocks(UNMAP_BYTES).max(physical_blocks),
            compare_and_write_blocks: u8::MAX,
            atomic_blocks: {
                // The length field of WRITE ATOMIC (16) has two bytes.
                let most = geometry.atomic_blocks.min(maximum_blocks).min(u16::MAX.into());
                most - most % below
            },
            atomic_granularity: below,
            write_same_to_end: settings.write_same_to_end,
        }
    }
}

/// The granularity of UNMAP in bytes: the size of memory pages and of file system blocks.
const UNMAP_BYTES: u32 = 4096;
/// Number of descriptors: as many as libiscsi's test suite sends in one UNMAP. Such a list has 4
/// KiB.
const UNMAP_DESCRIPTORS: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_whole_physical_blocks() {
        let geometry = Geometry::with_blocks(1000);
        let settings = Settings {
            maximum_transfer_bytes: 9000,
            optimal_transfer_bytes: 1 << 20,
            maximum_unmap_bytes: 1,
            ..Settings::default()
        };
        let limits = UnitBlockLimits::new(&settings, &geometry);
        assert_eq!(limits.maximum_blocks, 16);
        assert_eq!(limits.optimal_blocks, 16);
        assert_eq!(limits.unmap_blocks, 8);
        assert_eq!(limits.physical_blocks, 8);
    }

    #[test]
    fn a_thick_volume_has_no_unmap() {
        let geometry = Geometry { thin: false, ..Geometry::with_blocks(1000) };
        let limits = UnitBlockLimits::new(&Settings::default(), &geometry);
        assert_eq!((limits.unmap_blocks, limits.unmap_descriptors), (0, 0));
        assert_eq!(limits.maximum_blocks, 32768);
    }
}
