//! Commands that units of every device type may have: those of SPC-4, and RESERVE and RELEASE of
//! SPC-2.

pub mod inquiry;
mod lun_list;
mod mode_sense;
mod mode_select;
pub mod log;
pub mod persistent;
mod reporting;
pub mod copy;
mod target_port_groups;
mod task_functions;
mod timestamp;
mod identifying;
mod command;
mod operations;

pub use command::PrimaryCommand;
pub use identifying::{IdentifyingType, identifying_information, identifying_types};
pub use log::{LogSelect, LogSense};
pub use lun_list::{lun_list, parse_lun_list};
pub use mode_select::ModeSelect;
pub use mode_sense::{ModeSense, PageControl};
pub(crate) use operations::ROWS;
pub use persistent::{PersistentReserveIn, PersistentReserveOut};
pub use reporting::Reporting;
pub use target_port_groups::{ReportTargetPortGroups, TargetPortGroup, WantedState};
pub use task_functions::TaskFunctions;
pub use timestamp::{Timestamp, TimestampOrigin};
