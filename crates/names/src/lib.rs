//! The naming service: records that say which node has which volume, their exchange between nodes, the
//! resolution of names, and the authentication of the exchange. This crate has no sockets and no clock.
//! `docs/formats/network.md` has the bytes.

mod gln;
mod node_record;
mod peer_node;
mod naming_problem;
mod volume_location;
mod names_table;
mod channel;
mod message;

pub use channel::{
    Channel, ChannelEnd, ChannelError, FIRST_BYTES, FRAME_BYTES, HELLO_BYTES, Hello, NONCE_BYTES,
};
pub use gln::{Gln, NotAGln};
pub use message::{NamesRequest, NamesResponse, answer, begin, finish};
pub use names_table::{NamesTable, NodeExpiryTimes};
pub use naming_problem::NamingProblem;
pub use node_record::{
    MOST_ADDRESSES, MOST_COUNT, MOST_VOLUMES, NodeName, NodeRecord, NodeRecordRefusal,
    NodeRecordStamp, NodeVolumeEntry, PortalAddress, VolumeName, is_address,
};
pub use volume_location::{ListedNode, Unresolved, VolumeLocation};
