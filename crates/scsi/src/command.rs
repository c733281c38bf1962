//! `Command`: any command that a block device of Forebay serves, and the merged table of all
//! families.

use crate::{
    BlockTransfer, Cdb, OperationCodeEntry, Sense,
    block::{self, BlockCommand},
    operation::unknown_operation,
    primary::{self, PrimaryCommand},
    vendor::{self, VendorCommand},
};

/// A command of a block device: the fields of its CDB, but not its data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Command {
    /// A command that units of every device type may have (SPC-4).
    Primary(PrimaryCommand),
    /// A command of block devices (SBC-3).
    Block(BlockCommand),
    Vendor(VendorCommand),
}

impl Command {
    /// Returns READ (10), or READ (16) if `lba` or `blocks` do not fit READ (10).
    #[must_use]
    pub fn read(lba: u64, blocks: u32) -> Self {
        Self::Block(BlockCommand::Read(BlockTransfer::new(lba, blocks)))
    }

    /// Returns WRITE (10), or WRITE (16) if `lba` or `blocks` do not fit WRITE (10).
    #[must_use]
    pub fn write(lba: u64, blocks: u32, fua: bool) -> Self {
        let transfer = BlockTransfer::new(lba, blocks).with_fua(fua);
        Self::Block(BlockCommand::Write(transfer))
    }

    /// Returns SYNCHRONIZE CACHE (10) of the whole unit, with IMMED=0.
    #[must_use]
    pub fn synchronize_cache() -> Self {
        let transfer = BlockTransfer::new(0, 0);
        Self::Block(BlockCommand::SynchronizeCache { transfer, immediate: false })
    }

    /// Parses a CDB, which may be longer than its command requires, because iSCSI always sends 16
    /// bytes.
    ///
    /// # Errors
    /// 5/20/00 for an operation code that is not in [`OPERATIONS`]; 5/24/00 for an unknown service
    /// action of a known operation code, and for a field that requests something unsupported:
    /// protection information, ACA, reserved values.
    pub fn parse(cdb: &[u8]) -> Result<Self, Sense> {
        // Look for READ and WRITE first, since they are by far the most frequent commands.
        if let Some(parsed) = BlockCommand::parse_known(cdb) {
            return parsed.map(Self::Block);
        }
        if let Some(parsed) = PrimaryCommand::parse_known(cdb) {
            return parsed.map(Self::Primary);
        }
        if let Some(parsed) = VendorCommand::parse_known(cdb) {
            return parsed.map(Self::Vendor);
        }
        Err(unknown_operation(cdb, |opcode| {
            BlockCommand::has_opcode(opcode)
                || PrimaryCommand::has_opcode(opcode)
                || VendorCommand::has_opcode(opcode)
        }))
    }

    /// Returns the CDB of the command, with a CONTROL byte of zero.
    ///
    /// # Panics
    /// If a value does not fit the form of the CDB, or the command has no such form. This is for
    /// commands that our own code builds; every value that `parse` returned fits.
    #[must_use]
    pub fn encode(&self) -> Cdb {
        match self {
            Self::Primary(command) => command.encode(),
            Self::Block(command) => command.encode(),
            Self::Vendor(command) => command.encode(),
        }
    }
}

impl From<PrimaryCommand> for Command {
    fn from(command: PrimaryCommand) -> Self {
        Self::Primary(command)
    }
}

impl From<BlockCommand> for Command {
    fn from(command: BlockCommand) -> Self {
        Self::Block(command)
    }
}

impl From<VendorCommand> for Command {
    fn from(command: VendorCommand) -> Self {
        Self::Vendor(command)
    }
}

impl OperationCodeEntry {
    /// Returns the entry of a command in [`OPERATIONS`]; `None` if a block device has no such
    /// command.
    #[must_use]
    pub fn find(opcode: u8, service_action: Option<u16>) -> Option<&'static Self> {
        OPERATIONS.iter().find(|o| o.opcode == opcode && o.service_action == service_action)
    }
}

/// Every command that [`Command::parse`] accepts, ascending by operation code and service action.
pub static OPERATIONS: &[OperationCodeEntry] = &MERGED;

const PRIMARY_ROWS: usize = primary::ROWS.len();
const BLOCK_ROWS: usize = block::ROWS.len();

/// The entries of all command families in one table. SPC and SBC share operation codes: THIRD-PARTY
/// COPY OUT has service actions of both, so their rows must be merged.
const MERGED: [OperationCodeEntry; PRIMARY_ROWS + BLOCK_ROWS + vendor::ROWS.len()] = {
    let mut merged = [primary::ROWS[0].entry; PRIMARY_ROWS + BLOCK_ROWS + vendor::ROWS.len()];
    let (mut from_primary, mut from_block, mut at) = (0, 0, 0);
    while at < merged.len() {
        let is_primary = from_primary < PRIMARY_ROWS
            && (from_block == BLOCK_ROWS
                || primary::ROWS[from_primary].entry.key() < block::ROWS[from_block].entry.key());
        merged[at] = if is_primary {
            from_primary += 1;
            primary::ROWS[from_primary - 1].entry
        } else if from_block < BLOCK_ROWS {
            from_block += 1;
            block::ROWS[from_block - 1].entry
        } else {
            // Vendor specific operation codes are above all operation codes of the standards.
            vendor::ROWS[at - PRIMARY_ROWS - BLOCK_ROWS].entry
        };
        at += 1;
    }
    merged
};
