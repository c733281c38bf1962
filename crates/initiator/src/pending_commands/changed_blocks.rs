//! The part of a unit that a command changes: two writes to the same part must not overtake each other.

use iscsi::session::initiator::DataPhase;
use scsi::{BlockCommand, Cdb};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ChangedBlocks {
    Nothing,
    /// The blocks from the first number up to, but not including, the second.
    Blocks(u64, u64),
    Object(ChangedObject),
    /// Possibly all blocks of the unit: the command's range is not known.
    Everything,
}

impl ChangedBlocks {
    pub(super) fn of(cdb: &Cdb, transfer: &DataPhase) -> Self {
        if !matches!(transfer, DataPhase::Out(_)) {
            return Self::Nothing;
        }
        match BlockCommand::parse_known(cdb) {
            Some(Ok(
                BlockCommand::Write(blocks)
                | BlockCommand::WriteAndVerify { transfer: blocks, .. }
                | BlockCommand::WriteSame { transfer: blocks, .. },
            )) if blocks.blocks > 0 => {
                Self::Blocks(blocks.lba, blocks.lba.saturating_add(blocks.blocks.into()))
            }
            _ => Self::Everything,
        }
    }

    pub(super) fn meets(self, other: Self) -> bool {
        match (self, other) {
            (Self::Nothing, _) | (_, Self::Nothing) => false,
            (Self::Object(object), Self::Object(other)) => object.meets(other),
            (Self::Blocks(first, end), Self::Blocks(other, other_end)) => {
                first < other_end && other < end
            }
            _ => true,
        }
    }
}

/// The bytes of an object that an object command changes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ChangedObject {
    /// PARTITION_ID and USER_OBJECT_ID of the object that the command changes.
    pub(crate) object: (u64, u64),
    pub(crate) first: u64,
    /// The position behind the last changed byte.
    pub(crate) end: u64,
}

impl ChangedObject {
    const fn meets(self, other: Self) -> bool {
        self.object.0 == other.object.0
            && self.object.1 == other.object.1
            && self.first < other.end
            && other.first < self.end
    }
}
