//! Which volume is where: what nodes tell each other of their volumes, how a name is resolved, and
//! how the telling is protected. No socket and no clock: `docs/protocols.md` has the bytes.

mod gln;
mod record;
mod other;
mod trouble;
mod table;
mod channel;
mod message;

pub use channel::{Channel, End, FIRST_BYTES, FRAME_BYTES, HELLO_BYTES, Hello, NONCE_BYTES, Wrong};
pub use gln::{Gln, NotAGln};
pub use message::{Request, Response, answer, begin, finish};
pub use record::{
    Entry, MOST_ADDRESSES, MOST_COUNT, MOST_VOLUMES, NodeName, Portal, Record, Refusal, Stamp,
    VolumeName, is_address,
};
pub use table::{Listed, Place, Table, Times, Unresolved};
pub use trouble::Trouble;
