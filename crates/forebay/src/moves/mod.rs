//! Volumes that move from node to node: what a node keeps of them over restarts, what two nodes say to each
//! other, and how blocks are copied while they change. Decision 0018 says which node is right when.

mod access;
mod describe;
mod record;
mod message;
mod line;
mod pass;

pub use access::TargetAccessRules;
pub use describe::Described;
pub use line::{HELLO_BYTES, Hears, MoveChannelError, Says, call, respond};
pub use message::{MoveFrame, MoveOutcome, MoveRequest, MoveResponse};
pub use pass::{MoveCopyPace, MovePassError, pass};
pub use record::{Blocked, Come, CopyStage, MoveId, MoveOutRecord, Moves, VolumeMoveRecord};
