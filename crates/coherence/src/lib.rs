//! Cache coherence of several gateways on one volume (decision 0016): the state machines of the local consistency model
//! of W. T. Ng et al., "Obtaining high performance for storage outsourcing" (FAST 2002), 4.4.
//!
//! The volume is divided into ranges. A gateway needs a token before it uses a range: `SharedRead`, which any number of
//! gateways may hold, or `ExclusiveWrite`, which only one gateway may hold. The node has a `Grantor`, each gateway has
//! a `Holder`. They exchange these messages, which may be lost, duplicated or reordered:
//!
//! - `Join`, answered by `Joined`: the gateway names the ranges that it holds exclusively; at its start these are the
//!   ranges of which its log has dirty data. A new life begins, and messages of earlier lives are ignored.
//! - `Acquire`, answered by `Granted`: the gateway keeps the token after its use.
//! - `Recall`: another gateway wants the range. New uses wait, uses in progress end, and dirty data is destaged.
//! - `Release`, answered by `Released`: the node may grant the range to the next gateway.
//! - `Renew`, answered by `Renewed`: extends the lease, without which shared tokens end.
//!
//! The machines have neither I/O nor a clock: the caller passes the time and carries the messages. The caller also
//! enforces the tokens: the cache before each use of a range, and the node before each write.

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
