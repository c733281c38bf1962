//! SCSI as values: commands in, status and sense out. No storage, no network.
//!
//! Words and numbers come from SAM-5, SPC-4 and SBC-3.

mod field;
mod status;
mod lun;
mod lun_list;
mod sense;
mod cdb;
mod transfer;
mod mode_sense;
mod mode_select;
pub mod log;
pub mod persistent;
mod reporting;
mod defect;
mod sanitize;
pub mod copy;
mod start_stop;
mod target_port_groups;
mod task_functions;
mod timestamp;
mod identifying;
mod command;
mod operation;
mod supported;
mod capacity;
pub mod inquiry;
pub mod mode;
mod unmap;
mod lba_status;
pub mod vpd;

pub use capacity::{Capacity10, Capacity16};
pub use cdb::Cdb;
pub use command::Command;
pub use defect::ReadDefectData;
pub use identifying::{IdentifyingType, identifying_information, identifying_types};
pub use lba_status::{LbaStatus, lba_status_list, parse_lba_status_list};
pub use log::{LogSelect, LogSense};
pub use lun::Lun;
pub use lun_list::{lun_list, parse_lun_list};
pub use mode_select::ModeSelect;
pub use mode_sense::{ModeSense, PageControl};
pub use operation::{OPERATIONS, Operation};
pub use persistent::{PersistentReserveIn, PersistentReserveOut};
pub use reporting::Reporting;
pub use sanitize::{Overwrite, Sanitize, SanitizeAction};
pub use sense::{FieldPointer, Sense, SenseKey};
pub use start_stop::StartStop;
pub use status::Status;
pub use supported::{supported_operation, supported_operations};
pub use target_port_groups::{ReportTargetPortGroups, TargetPortGroup, WantedState};
pub use task_functions::TaskFunctions;
pub use timestamp::{Timestamp, TimestampOrigin};
pub use transfer::{ByteCheck, Form, Transfer};
pub use unmap::{UnmapDescriptor, parse_unmap_list, unmap_list};
