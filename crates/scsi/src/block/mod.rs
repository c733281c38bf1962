//! Commands of block devices (SBC-3, and WRITE ATOMIC of SBC-4) with their parameter lists and
//! parameter data.

mod transfer;
mod capacity;
mod defect;
mod lba_status;
mod sanitize;
mod start_stop;
mod unmap;
mod command;
mod operations;

pub use capacity::{Capacity10, Capacity16};
pub use command::BlockCommand;
pub use defect::ReadDefectData;
pub use lba_status::{LbaStatus, lba_status_list, parse_lba_status_list};
pub(crate) use operations::ROWS;
pub use sanitize::{Overwrite, Sanitize, SanitizeAction};
pub use start_stop::StartStop;
pub use transfer::{BlockTransfer, ByteCheck, Form};
pub use unmap::{UnmapDescriptor, parse_unmap_list, unmap_list};
