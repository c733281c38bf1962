//! Forebay's own iSCSI initiator: sessions on real TCP, remote units as volumes, and object drives as object stores.
//!
//! The `iscsi` crate has the protocol's state machine. This crate has the sockets, reconnecting, the commands of a
//! disk, and the handling of their failures.

mod url;
mod error;
mod locate;
mod settings;
mod statistics;
mod unit_description;
mod clock;
mod ping_progress;
mod connection_io;
mod login;
mod session_io;
mod probe;
mod reservation;
mod claim;
mod discovery;
mod pending_commands;
mod session_state;
mod verified_session;
mod backoff;
mod missing_connections;
mod statistics_baseline;
mod driver;
mod capacity_refresh;
mod session;
mod claim_task;
mod volatile_writes;
mod volume;
mod objects;

pub use claim::{COPY_IN_USE, DATA_ELSEWHERE, NODE_IS_OLDER, OURSELVES, claim_of};
pub use discovery::{DiscoveredTarget, ListedUnit, discover, list_units};
pub use error::{CommandError, Error};
pub use iscsi::{
    Isid,
    keys::NegotiationOffer,
    login::chap,
    session::initiator::{CommandDistribution, DataPhase},
};
pub use locate::{IscsiLocation, Locate, Locating};
pub use objects::{Credential, Grant, GrantedCapability, KeyChain, OwnKeys, RemoteObjects};
pub use pending_commands::PerformedCommand;
pub use session::RemoteSession;
pub use session_state::LinkState;
pub use settings::Settings;
pub use statistics::{
    InitiatorCallCounters, InitiatorConnectionStats, InitiatorRecoveryCounters,
    InitiatorStatistics, InitiatorTrafficCounters, RoundTrips,
};
pub use unit_description::{ObjectDriveDescription, UnitDescription, UnitKind};
pub use url::{Url, UrlError};
pub use volume::RemoteVolume;
