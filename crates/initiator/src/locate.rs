//! Finds the location of a volume that is given by its name. The location is queried before every connect,
//! because the volume may have moved.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

/// A service that knows the locations of volumes.
pub trait Locate: fmt::Debug + Send + Sync {
    /// Returns the present location of the volume, or an error after a time limit that the implementation sets.
    fn locate(&self) -> Locating<'_>;
}

/// A future that returns the location of a volume, or the reason why the location is unknown.
pub type Locating<'a> = Pin<Box<dyn Future<Output = Result<IscsiLocation, Arc<str>>> + Send + 'a>>;

/// The location of a volume: the target and unit that serve it, and the portals of the target.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IscsiLocation {
    /// The portals as `host:port`, in the order in which to try them.
    pub portals: Vec<String>,
    /// iSCSI name of the target that serves the volume.
    pub target: String,
    /// The logical unit, 0 to 16383.
    pub lun: u16,
}
