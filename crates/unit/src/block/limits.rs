//! How much one command may ask for.

use volume::Geometry;

/// Settings of a block unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Settings {
    /// The most that one READ, WRITE, VERIFY or WRITE SAME may move, in bytes; at least one
    /// physical block. What a READ returns and a WRITE brings is held in memory.
    pub maximum_transfer_bytes: u32,
    /// What initiators should ask for at once, in bytes. Linux never asks for more than this.
    pub optimal_transfer_bytes: u32,
    /// The most that one UNMAP may give back, in bytes.
    pub maximum_unmap_bytes: u32,
    /// A WRITE SAME of zero blocks goes to the end of the unit (WSNZ=0); otherwise it is refused.
    pub write_same_to_end: bool,
    /// The medium can be taken out (RMB): START STOP UNIT ejects and loads it.
    pub removable: bool,
    /// The soft threshold of a thin volume, 1 to 100: percent of the space used, of used and left,
    /// above which initiators are told. `None`: never.
    pub soft_threshold_percent: Option<u8>,
    /// Bytes of a physical block as initiators are told; `None`: as the volume has it. A power of
    /// two, at least a logical block, at most what the volume has.
    pub physical_block_bytes: Option<u32>,
    /// INQUIRY claims SPC-3 in place of SPC-4, for initiators that know nothing newer, and what
    /// SPC-3 has other rules for follows those.
    pub spc_3: bool,
    /// While a cache has claimed the unit, others may read it: they see it as it was some time ago.
    pub reads_beside_claim: bool,
    /// Several gateways change the unit, each what it has tokens for.
    pub share: Option<Share>,
    /// The blocks are those of a unit that other gateways change, too: what asks for an answer for all
    /// initiators at once, reservations and COMPARE AND WRITE among them, is not there.
    pub is_one_of_many: bool,
}

/// How a unit is shared.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Share {
    /// Bytes that are granted as one: whole blocks, at least one.
    pub grain_bytes: u32,
    /// After so many milliseconds without a word a gateway's tokens for reading are given on; at least
    /// 1000, at most 3,600,000.
    pub lease_ms: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // What tgt and LIO take at most is 32,768 blocks of 512 bytes or about.
            maximum_transfer_bytes: 16 << 20,
            // One burst of the MaxBurstLength that we offer.
            optimal_transfer_bytes: 1 << 20,
            // Short enough not to keep other commands waiting below.
            maximum_unmap_bytes: 64 << 20,
            // As LIO: whoever means the end can say how far it is, and who means nothing is safe.
            write_same_to_end: false,
            removable: false,
            soft_threshold_percent: None,
            physical_block_bytes: None,
            spc_3: false,
            // An older image, but a consistent one: enough for a backup.
            reads_beside_claim: true,
            share: None,
            is_one_of_many: false,
        }
    }
}

/// The most that one token stands for, in bytes: a WRITE USING TOKEN of it takes some seconds.
pub(crate) const TOKEN_BYTES_MOST: u64 = 256 << 20;
/// How long a token lasts without being used, in seconds, unless another time is asked for; and the
/// longest that may be asked for.
pub(crate) const TOKEN_TIMEOUT_S: u32 = 60;
pub(crate) const TOKEN_TIMEOUT_S_MOST: u32 = 600;

/// The settings in blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct UnitBlockLimits {
    /// Most blocks of a transfer, and of a WRITE SAME.
    pub(crate) maximum_blocks: u32,
    pub(crate) optimal_blocks: u32,
    /// Blocks of one UNMAP command; zero without thin provisioning.
    pub(crate) unmap_blocks: u32,
    /// Descriptors of one UNMAP command.
    pub(crate) unmap_descriptors: u32,
    /// Logical blocks in a physical block.
    pub(crate) physical_blocks: u32,
    /// Blocks that space is given back in.
    pub(crate) unmap_granularity: u32,
    /// Blocks of one COMPARE AND WRITE.
    pub(crate) compare_and_write_blocks: u8,
    /// Blocks of one WRITE ATOMIC; zero: there is no such command.
    pub(crate) atomic_blocks: u32,
    /// Blocks that it begins with and has a multiple of.
    pub(crate) atomic_granularity: u32,
    /// See [`Settings::write_same_to_end`].
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
                // Two bytes of length.
                let most = geometry.atomic_blocks.min(maximum_blocks).min(u16::MAX.into());
                most - most % below
            },
            atomic_granularity: below,
            write_same_to_end: settings.write_same_to_end,
        }
    }
}

/// The pages of memory and the blocks of file systems.
const UNMAP_BYTES: u32 = 4096;
/// As many as libiscsi's tests use at once; the list is 4 KiB.
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
