//! The trait of everything that keeps objects.

use volume::Reply;

use crate::{ObjectError, ObjectReply, ObjectRequest};

pub type ObjectResult = Result<ObjectReply, ObjectError>;

/// A place of objects: a drive, or a session with one.
///
/// A command that ended without FUA may be lost in a crash until a flush covers its object. Of each
/// object a consistent prefix of its changes remains: length, attributes and data agree. Commands
/// of one object that overlap in time take effect in any order, each as a whole.
pub trait ObjectStore: Send + Sync + 'static {
    /// Performs one command. Dropping the reply aborts the command: it then had its whole effect,
    /// or none.
    fn perform(&self, request: ObjectRequest) -> Reply<'_, ObjectResult>;
}
