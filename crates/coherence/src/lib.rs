//! Cache coherence of several gateways on one volume: the state machines of the local consistency model of W. T. Ng
//! et al., "Obtaining high performance for storage outsourcing" (FAST 2002), 4.4. The node has a `Grantor`, each
//! gateway has a `Holder`. Their messages may be lost, duplicated or reordered. No I/O, and no clock: time comes in
//! as an argument.

mod token;
mod message;
mod grantor;
mod list_encoding;
mod holder_range_state;
mod holder_lease;
mod holder;

pub use grantor::{Grantor, SharingMember, SharingMemberStatus, Terms};
pub use holder::{Begin, Holder};
pub use holder_range_state::{Cleaning, CoherenceTicket};
pub use list_encoding::{
    ListError, MOST_LIST_BYTES, read_answers, read_requests, write_answers, write_requests,
};
pub use message::{CoherenceReply, CoherenceRequest};
pub use token::{CoherenceRange, CoherenceToken, Grant, MOST_TOKENS, Millis};
