//! An object drive (T10 OSD-2): keeps objects on any volume, and checks each command against a
//! capability.
//!
//! | module | contents |
//! |--------|----------|
//! | `store` | [`DriveStore`], an [`ObjectStore`](object::ObjectStore) on a stack of volumes: data in blocks of 4 KiB that are never overwritten in place, everything else in rows of an ordered table |
//! | `backing` | the interface of the store to the other modules |
//! | `security` | keys, nonces, the drive's clock, the check of a command |
//! | `unit` | the logical unit of type 11h: CDBs, lists, answers |

mod error_sense;
pub mod store;
mod backing;
pub mod security;
pub mod unit;
#[cfg(test)]
mod testing;

pub use self::unit::{ListLimits, ObjectUnit};
pub use backing::DriveBacking;
pub use store::{
    Clock, DriveExamination, DriveFinding, DriveFindingKind, DriveIdentity, DriveOptions,
    DriveStatistics, DriveStore, ExaminationProgress, GuardFacts, Limits, OpenError, ScrubReport,
    examine_drive,
};
pub use store::{DriveMutant, DriveMutation};
