//! Who of several gateways may keep what of one volume: the machines of the local consistency model of
//! W. T. Ng et al., "Obtaining high performance for storage outsourcing" (FAST 2002), 4.4. A `Grantor`
//! at the node, a `Holder` at each gateway, messages between them that may be lost, come twice and
//! overtake each other. No I/O, and no clock: time comes in as an argument.

mod token;
mod message;
mod grantor;
mod list;
mod holder;

pub use grantor::{Grantor, SharingMember, SharingMemberStatus, Terms};
pub use holder::{Begin, Cleaning, Holder, TokenUseTicket};
pub use list::{
    ListError, MOST_LIST_BYTES, read_answers, read_requests, write_answers, write_requests,
};
pub use message::{TokenReply, TokenRequest};
pub use token::{CoherenceRange, CoherenceToken, Grant, MOST_TOKENS, Millis};
