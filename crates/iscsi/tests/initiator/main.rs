//! The initiator session against targets that violate the standard: each PDU of the target is
//! either accepted or ends the connection, the session never panics, and its memory does not grow.

mod scene;
mod data;
mod bidirectional;
mod answers;
mod sessions;
mod connections;
mod hostile;
