//! Volumes that move from node to node: what a node keeps of them over restarts, what two nodes say to each
//! other, and how blocks are copied while they change. Decision 0018 says which node is right when.

mod access;
mod describe;
mod record;
mod message;
mod line;
mod pass;
mod progress;

pub use access::Access;
pub use describe::Described;
pub use line::{HELLO_BYTES, Hears, Lost, Says, call, respond};
pub use message::{Answer, Fate, Frame, Request};
pub use pass::{Broken, Pace, pass};
pub use progress::{Listed, Progress, Stage};
pub use record::{Blocked, Come, CopyStage, Gone, Kept, MoveId, Moves};
