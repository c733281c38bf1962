//! Forebay's own iSCSI initiator: sessions on real TCP, and remote units as volumes.
//!
//! The protocol is the `iscsi` crate's machine; here are the socket, the reconnecting, the
//! commands of a disk, and what becomes of their failures.

mod url;
mod error;
mod locate;
mod settings;
mod statistics;
mod facts;
mod clock;
mod carriage;
mod wire;
mod login;
mod wires;
mod probe;
mod reserve;
mod claim;
mod discovery;
mod pending;
mod shared;
mod live;
mod pauses;
mod crew;
mod counted;
mod driver;
mod size;
mod session;
mod owning;
mod stability;
mod volume;

pub use claim::{NODE_IS_OLDER, OURSELVES, claim_of};
pub use discovery::{DiscoveredTarget, ListedUnit, discover, list_units};
pub use error::{CommandError, Error};
pub use facts::Facts;
pub use iscsi::{
    Isid,
    keys::NegotiationOffer,
    login::chap,
    session::initiator::{CommandDistribution, DataPhase},
};
pub use locate::{IscsiLocation, Locate, Locating};
pub use pending::PerformedCommand;
pub use session::RemoteSession;
pub use settings::Settings;
pub use shared::LinkState;
pub use statistics::{InitiatorConnectionStats, InitiatorStatistics, RoundTrips};
pub use url::{Url, UrlError};
pub use volume::RemoteVolume;
