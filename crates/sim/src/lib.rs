//! Simulated time, links and disks under the control of a test.
//!
//! Nothing here sleeps, and all randomness comes from a seed: a test that fails prints its seed, and fails again with
//! it.

mod rng;
mod simulated_link;
mod yield_now;
mod power_supply;
mod disk_image;
mod crash_fate;
mod crash_volume;
mod restarting_volume;
mod folder_openings;
mod ability_probe;

pub use ability_probe::AbilityProbe;
pub use crash_volume::{CrashVolume, FlushGuarantee, Outage};
pub use disk_image::StableDiskImage;
pub use folder_openings::openings_of;
pub use power_supply::Power;
pub use restarting_volume::Restarting;
pub use rng::Rng;
pub use simulated_link::SimulatedLink;
pub use yield_now::yield_now;
