//! SCSI commands, status and sense data as values: parsers and encoders, without storage and
//! network.
//!
//! Names and numbers come from SAM-5, SPC-4 and SBC-3.

mod field;
mod plain;
mod status;
mod lun;
mod sense;
mod cdb;
mod operation;
mod primary;
mod block;
mod vendor;
mod command;
mod admitted;
mod supported;
mod tally;
pub mod mode;
pub mod vpd;

pub use admitted::{AdmittedCommand, ParsedCommand};
pub use block::{
    BlockCommand, BlockTransfer, ByteCheck, Capacity10, Capacity16, Form, LbaStatus, Overwrite,
    ReadDefectData, Sanitize, SanitizeAction, StartStop, UnmapDescriptor, lba_status_list,
    parse_lba_status_list, parse_unmap_list, unmap_list,
};
pub use cdb::Cdb;
pub use command::{Command, OPERATIONS};
pub use lun::Lun;
pub use operation::{
    CdbParser, OperationCodeEntry, OperationRow, OperationTable, VARIABLE_LENGTH_CDB,
    unknown_operation,
};
pub use plain::is_plain;
pub use primary::{
    IdentifyingType, LogSelect, LogSense, ModeSelect, ModeSense, PageControl, PersistentReserveIn,
    PersistentReserveOut, PrimaryCommand, ReportTargetPortGroups, Reporting, TargetPortGroup,
    TaskFunctions, Timestamp, TimestampOrigin, WantedState, copy, identifying_information,
    identifying_types, inquiry, log, lun_list, parse_lun_list, persistent,
};
pub use sense::{
    FieldPointer, ObjectIdentification, ObjectSense, ReceivedObjectSense, Sense, SenseKey,
};
pub use status::ScsiStatus;
pub use supported::{supported_operation, supported_operations};
pub use tally::{CommandCode, OpcodeTally, name_of_opcode};
pub use vendor::{ClaimAction, ClaimParameters, ClaimReport, VendorCommand};
