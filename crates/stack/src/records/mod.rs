//! Records of storage: which file or device was in use at a path when it was last opened.
//!
//! A volume file or cache log whose disk is not mounted looks like one that was never created. Its
//! record is stored elsewhere and distinguishes the two, so that acknowledged data is never
//! replaced by an empty file. `docs/formats/state.md` describes the bytes.

mod storage_record;
mod folder;
mod file_id;
mod volume_file;
mod log;

pub use folder::{Recorder, Records, absolute};
pub use log::{KeptLog, LogRecords};
pub use storage_record::StorageRecord;
pub use volume_file::KeptVolume;
