//! iSCSI targets on real TCP: a [`TargetServer`] listens on portals and serves the units of its targets.
//!
//! One task for each session owns its sockets and its protocol machine, runs every complete PDU
//! inline and answers in batches. Which storage is behind a unit is not known here.

mod access;
mod settings;
mod device;
mod portal;
mod names;
mod door;
mod times;
mod statistics;
mod guard;
mod repeats;
mod end;
mod gauge;
mod polling;
mod pool;
mod line;
mod registry;
mod surroundings;
mod execution;
mod deferred;
mod presence;
mod driver;
mod room;
mod sending;
mod tasks;
mod entrance;
mod server;

pub use access::{LoginAccess, LoginAccessRule, NetworkPrefix, Security};
pub use names::{Target, TargetError};
pub use portal::{Listener, Portal, PortalGroup, Redirect};
pub use server::TargetServer;
pub use settings::Settings;
pub use statistics::{SessionStatistics, TargetConnectionStats, TargetStatistics};
pub use times::CommandKind;
