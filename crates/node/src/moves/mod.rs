//! Moving volumes between nodes: the records that survive restarts, the messages between two nodes, and the copying of
//! blocks while they change. Decision 0018 says which node owns the volume at each moment.
//!
//! One move:
//!
//! 1. The destination accepts the volume: it reserves names, space and a file for the copy ([`CopyStage::Arriving`]).
//! 2. The source node copies the blocks while hosts use them, in several passes: each pass copies the blocks that were
//!    written since they were last copied.
//! 3. The source node holds the commands of hosts, copies the rest, and ends all sessions.
//! 4. `Prepare`: the destination makes the copy and the records of the unit stable ([`CopyStage::Ready`]).
//! 5. The source node makes its record of the move stable. From then on the destination owns the volume, and the source
//!    node redirects initiators.
//! 6. `Commit`: the destination serves the volume ([`CopyStage::Here`]). If this message is lost, the destination asks
//!    for the outcome until the source node answers.
//!
//! A failure before step 5 leaves the volume at the source node, and the copy is discarded.

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
