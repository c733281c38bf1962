//! CDBs of third-party copy: THIRD-PARTY COPY OUT (83h) and IN (84h) (SPC-4, 6.4 and from 6.24;
//! SBC-3, 5.13 and 5.45 for tokens).

use crate::{Cdb, field::be32};

/// The service actions of RECEIVE COPY RESULTS and related commands (their numbers are in
/// brackets), with the list identifier of the copy that the command asks about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CopyResults {
    /// Service action 00h: COPY STATUS (LID1), with the list identifier.
    Status1(u8),
    /// Service action 03h: OPERATING PARAMETERS.
    OperatingParameters,
    /// Service action 04h: FAILED SEGMENT DETAILS (LID1), with the list identifier.
    FailedSegment1(u8),
    /// Service action 05h: COPY STATUS (LID4), with the list identifier.
    Status4(u32),
    /// Service action 07h: RECEIVE ROD TOKEN INFORMATION, with the list identifier.
    RodTokens(u32),
}

impl CopyResults {
    #[must_use]
    pub const fn service_action(self) -> u8 {
        match self {
            Self::Status1(_) => 0x00,
            Self::OperatingParameters => 0x03,
            Self::FailedSegment1(_) => 0x04,
            Self::Status4(_) => 0x05,
            Self::RodTokens(_) => 0x07,
        }
    }

    pub(crate) fn encode(self, allocation_length: u32) -> Cdb {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (0x84, self.service_action());
        match self {
            Self::Status1(list) | Self::FailedSegment1(list) => cdb[2] = list,
            Self::OperatingParameters => {}
            Self::Status4(list) | Self::RodTokens(list) => {
                cdb[2..6].copy_from_slice(&list.to_be_bytes());
            }
        }
        cdb[10..14].copy_from_slice(&allocation_length.to_be_bytes());
        Cdb::new(&cdb)
    }
}

/// Encodes a CDB of THIRD-PARTY COPY OUT with this service action. `list` is the list identifier of
/// a token command, and zero for EXTENDED COPY.
pub(crate) fn encode_out(action: u8, list: u32, parameter_list_length: u32) -> Cdb {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x83, action);
    cdb[6..10].copy_from_slice(&list.to_be_bytes());
    cdb[10..14].copy_from_slice(&parameter_list_length.to_be_bytes());
    Cdb::new(&cdb)
}

/// Encodes COPY OPERATION ABORT for the copy whose list identifier is `list`.
pub(crate) fn encode_abort(list: u32) -> Cdb {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x83, 0x1c);
    cdb[2..6].copy_from_slice(&list.to_be_bytes());
    Cdb::new(&cdb)
}

/// Returns the list identifier and the parameter list length in a THIRD-PARTY COPY OUT CDB.
pub(crate) fn parse_out(cdb: &[u8]) -> (u32, u32) {
    (be32(cdb, 6), be32(cdb, 10))
}
