//! An emulated long link on one machine.
//!
//! The model of one direction of a link ([`LinkDirection`]) has no clock and holds no packets: its caller passes the
//! time and the length of each packet, and the model decides whether and when the packet arrives. Loss, jitter,
//! duplicates and changed bits depend on a seed, so that a run can be repeated.
//!
//! [`Link`] carries real packets according to the model between two network namespaces that it makes, each
//! with a TUN device. This works only on Linux and needs the privileges to create namespaces and devices.

mod settings_error;
mod settings;
mod random_stream;
mod packet_loss;
mod packet_queue;
mod counters;
mod background_traffic;
mod direction;
mod error;
mod packet;
mod packets_in_flight;
mod timeliness;
mod packet_capture;
mod oversleep;
mod cpu_latency;
mod system_calls;
mod emulator;
mod namespace;
mod link;
mod netem;

pub use counters::{BackgroundCounters, DirectionCounters, Lengths};
pub use direction::{LinkDirection, PacketDelivery, PacketDropCause, PacketFate};
pub use emulator::{LaneReport, LinkReport};
pub use error::Error;
pub use link::{DEVICE, Link, LinkOptions, WanLinkEnd, check, check_name, clear};
pub use netem::Netem;
pub use settings::{BurstLossModel, DirectionSettings, PacketLossModel};
pub use settings_error::LinkSettingsError;
pub use timeliness::Lateness;
