//! A long link on one machine.
//!
//! The model of one direction of a link ([`Direction`]) has no clock and no packets: it is told when
//! a packet of which length comes, and says whether it passes and when it arrives. Loss, jitter,
//! duplicates and changed bits come from a seed, so that a run can be had again.

mod problem;
mod settings;
mod dice;
mod loss;
mod queue;
mod background;
mod counters;
mod direction;

pub use counters::Counters;
pub use direction::{Cause, Direction, Fate, Passage};
pub use problem::Problem;
pub use settings::{Burst, Loss, Settings};
