//! Records of storage: which file or device was in use at a path when it was last opened.
//!
//! A volume file or a cache log whose disk is not mounted looks like one that was never made. Its
//! record lies elsewhere and tells the two apart, so that acknowledged data is never replaced by an
//! empty file. `docs/formats/state.md` has the bytes.

mod storage_record;
mod folder;
mod file_id;
mod volume_file;
mod log;

pub use folder::{Recorder, Records, absolute};
pub use log::{KeptLog, LogRecords};
pub use storage_record::StorageRecord;
pub use volume_file::KeptVolume;
