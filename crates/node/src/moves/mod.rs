//! Moving volumes between nodes: the records that survive restarts, the messages between two nodes, and the
//! copying of blocks while they change. Decision 0018 says which node owns the volume at each moment.

mod access_rules;
mod volume_description;
mod record;
mod message;
mod channel;
mod copy_pass;

pub use access_rules::TargetAccessRules;
pub use channel::{HELLO_BYTES, Hears, MoveChannelError, Says, call, respond};
pub use copy_pass::{MoveCopyPace, MovePassError, pass};
pub use message::{MoveFrame, MoveOutcome, MoveRequest, MoveResponse};
pub use record::{Blocked, Come, CopyStage, MoveId, MoveOutRecord, Moves, VolumeMoveRecord};
pub use volume_description::Described;
