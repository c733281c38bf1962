//! Log pages (SPC-4, 6.7, 6.8, 7.3; SBC-3, 6.4): CDBs of LOG SENSE and LOG SELECT, and the pages as
//! bytes.

mod command;
mod page;

pub use command::{LogSelect, LogSense};
pub use page::{
    InformationalExceptions, LogPage, LogParameter, ProvisioningCounts, supported_log_pages,
    supported_log_subpages,
};
