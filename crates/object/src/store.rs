//! The trait through which a drive, or a session with a drive, performs commands.

use volume::Reply;

use crate::{ObjectError, ObjectReply, ObjectRequest};

pub type ObjectResult = Result<ObjectReply, ObjectError>;

/// Keeps objects and performs commands on them: a drive, or a session with a drive.
///
/// A crash may lose a command that ended without FUA, until a flush covers its object. A consistent prefix of each
/// object's changes remains: length, attributes and data agree. Commands on one object that overlap in time take effect
/// in any order, each as a whole.
pub trait ObjectStore: Send + Sync + 'static {
    /// Performs one command. Dropping the reply aborts the command: its effect is then complete, or there is none.
    fn perform(&self, request: ObjectRequest) -> Reply<'_, ObjectResult>;
}
