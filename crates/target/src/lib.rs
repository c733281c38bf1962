//! iSCSI targets on real TCP: a [`TargetServer`] listens on portals and serves the units of its targets.
//!
//! Each session is run by one task, its driver, which owns the session's sockets and protocol state, processes every
//! complete PDU inline and responds in batches. This crate does not know which storage is behind a unit.

mod login_access;
mod settings;
mod unitless_commands;
mod portal;
mod target_table;
mod portal_view;
mod command_times;
mod statistics;
mod chap_delay;
mod repeated_refusals;
mod end_reason;
mod counted_limit;
mod busy_polling;
mod write_data_pool;
mod connection_io;
mod session_registry;
mod server_context;
mod execution;
mod deferred_commands;
mod nexus_handle;
mod driver;
mod session_memory;
mod responses;
mod tasks;
mod login_io;
mod server;

pub use command_times::CommandKind;
pub use login_access::{LoginAccess, LoginAccessRule, NetworkPrefix, Security};
pub use portal::{Listener, Portal, PortalGroup, Redirect};
pub use server::TargetServer;
pub use settings::Settings;
pub use statistics::{SessionStatistics, TargetConnectionStats, TargetStatistics};
pub use target_table::{Target, TargetError};
