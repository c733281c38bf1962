//! SCSI as values: commands in, status and sense out. No storage, no network.
//!
//! Words and numbers come from SAM-5, SPC-4 and SBC-3.

mod status;
mod lun;
mod sense;
mod cdb;

pub use cdb::Cdb;
pub use lun::Lun;
pub use sense::{Sense, SenseKey};
pub use status::Status;
