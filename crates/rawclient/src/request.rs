//! The SCSI commands that the client sends, with their CDBs and data lengths.

/// A SCSI command, in the form in which a workload passes it to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientScsiCommand {
    /// The CDB of the command, padded with zeroes to 16 bytes.
    pub cdb: [u8; 16],
    /// The number of bytes that the command writes.
    pub out: u32,
    /// The number of bytes that the command reads at most.
    pub expected: u32,
}

impl ClientScsiCommand {
    /// Returns READ (10); `block_bytes` is the block length of the unit.
    pub fn read(lba: u32, blocks: u16, block_bytes: u32) -> ClientScsiCommand {
        ClientScsiCommand {
            expected: u32::from(blocks) * block_bytes,
            ..ClientScsiCommand::ten(0x28, 0, lba, blocks)
        }
    }

    /// Returns WRITE (10). With `fua`, the data is stable when the command is acknowledged.
    pub fn write(lba: u32, blocks: u16, block_bytes: u32, fua: bool) -> ClientScsiCommand {
        let flags = if fua { 0x08 } else { 0 };
        ClientScsiCommand {
            out: u32::from(blocks) * block_bytes,
            ..ClientScsiCommand::ten(0x2a, flags, lba, blocks)
        }
    }

    /// Returns SYNCHRONIZE CACHE (10) of the whole unit.
    pub fn flush() -> ClientScsiCommand {
        ClientScsiCommand::ten(0x35, 0, 0, 0)
    }

    pub fn test_unit_ready() -> ClientScsiCommand {
        ClientScsiCommand { cdb: [0; 16], out: 0, expected: 0 }
    }

    /// Returns READ CAPACITY (16), which reads 32 bytes.
    pub fn read_capacity() -> ClientScsiCommand {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, 32);
        ClientScsiCommand { cdb, out: 0, expected: 32 }
    }

    fn ten(operation: u8, flags: u8, lba: u32, blocks: u16) -> ClientScsiCommand {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (operation, flags);
        cdb[2..6].copy_from_slice(&lba.to_be_bytes());
        cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
        ClientScsiCommand { cdb, out: 0, expected: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cdbs_as_in_sbc_3() {
        let write = ClientScsiCommand::write(0x01020304, 0x0506, 512, true);
        assert_eq!(write.cdb[..10], [0x2a, 8, 1, 2, 3, 4, 0, 5, 6, 0]);
        assert_eq!((write.out, write.expected), (0x0506 * 512, 0));
        let read = ClientScsiCommand::read(1, 8, 512);
        assert_eq!((read.cdb[0], read.out, read.expected), (0x28, 0, 4096));
    }
}
