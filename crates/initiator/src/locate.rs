//! Where a volume is that is named and not addressed: asked before every connect, since it may have
//! moved.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

/// Who knows where a volume is.
pub trait Locate: fmt::Debug + Send + Sync {
    /// Where it is now. Bounded in time by who answers.
    fn locate(&self) -> Locating<'_>;
}

/// A place on its way, or why there is none.
pub type Locating<'a> = Pin<Box<dyn Future<Output = Result<IscsiLocation, Arc<str>>> + Send + 'a>>;

/// Where a volume is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IscsiLocation {
    /// `host:port` of each portal, to be tried in this order.
    pub portals: Vec<String>,
    /// The target's iSCSI name.
    pub target: String,
    /// The logical unit, 0 to 16383.
    pub lun: u16,
}
