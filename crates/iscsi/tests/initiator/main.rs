//! The initiator session against targets that violate the standard: every answer is either valid or
//! ends the connection; nothing panics, and memory does not grow.

mod scene;
mod data;
mod answers;
mod sessions;
mod connections;
mod hostile;
