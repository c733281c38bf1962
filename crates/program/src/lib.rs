//! Programs that we start: each leads a group of its own, has the default signal dispositions and does not
//! itself outlive us, nobody waits longer for its end than they want, and what it says is kept for who asks.
//!
//! Which programs these are, and what becomes of one that fails, is their starter's affair.

mod said;
mod signals;
mod running;

pub use running::{Running, ending};
pub use said::{Said, last_lines};
pub use signals::reset_signals;
