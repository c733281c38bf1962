//! Time, links and disks that a test holds in its hand.
//!
//! Nothing here sleeps, and nothing is random beyond a seed: a test that fails prints its seed
//! and fails again with it.

mod rng;
mod link;
mod yielding;
mod power;
mod image;
mod fate;
mod crash;
mod restarting;
mod folder;
mod ability_probe;

pub use ability_probe::AbilityProbe;
pub use crash::{CrashVolume, FlushGuarantee, Outage};
pub use folder::openings_of;
pub use image::StableDiskImage;
pub use link::SimulatedLink;
pub use power::Power;
pub use restarting::Restarting;
pub use rng::Rng;
pub use yielding::yield_now;
