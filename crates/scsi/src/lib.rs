//! SCSI as values: commands in, status and sense out. No storage, no network.
//!
//! Words and numbers come from SAM-5, SPC-4 and SBC-3.

mod field;
mod status;
mod lun;
mod sense;
mod cdb;
mod command;
mod operation;

pub use cdb::Cdb;
pub use command::{ByteCheck, Command, Form, ModeSense, PageControl, Reporting, Transfer};
pub use lun::Lun;
pub use operation::{OPERATIONS, Operation};
pub use sense::{FieldPointer, Sense, SenseKey};
pub use status::Status;
