//! The object store on a volume.
//!
//! Layout: a superblock in two copies, a log, tables (redb on a part of the volume), and blocks of data. A row of the tables
//! is about an object, an attribute, the places of 1 MiB of data (a *chunk*), or the free blocks of 128 MiB (a
//! *group*). Changes collect in memory; a commit writes all of them to the log at once, and from time to time the rows
//! of the log go to the tables. So after a crash, the drive is as it was after some commit, and of each object a
//! consistent prefix of its changes remains.

mod options;
mod mutant;
mod block_on;
mod disk;
mod superblock;
mod metadata_file;
mod key;
mod object_row;
mod chunk;
mod groups;
mod unsynced;
mod row_store;
mod log_record;
mod change_log;
mod works;
mod transaction;
mod work_row;
mod sharing;
mod object_rows;
mod freeing;
mod build;
mod replacing;
mod tables;
mod tracking;
mod background;
mod loader;
mod committer;
mod reservation;
mod drive_core;
mod worker;
mod attributes;
mod objects;
mod conclusion;
mod extents;
mod pieces;
mod plans;
mod reading;
mod comparing;
mod space;
mod writing;
mod punching;
mod listing;
mod collections;
mod members;
mod querying;
mod tracking_collections;
mod copying;
mod scrubbing;
mod commands;
mod drive_store;
mod examination;
#[cfg(feature = "fuzzing")]
mod decoding;
#[cfg(test)]
mod format;

#[cfg(feature = "fuzzing")]
pub use decoding::decode_metadata;
pub use drive_store::DriveStore;
pub use examination::{
    DriveExamination, DriveFinding, DriveFindingKind, ExaminationProgress, examine_drive,
};
pub use mutant::{DriveMutant, DriveMutation};
pub use options::{
    Clock, DriveIdentity, DriveOptions, DriveStatistics, GuardFacts, Limits, OpenError,
};
pub use scrubbing::ScrubReport;
