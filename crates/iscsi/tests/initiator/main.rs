//! The initiator's machine against targets that do what no target should: every answer is either
//! taken for what it is or ends the connection; nothing panics, nothing grows.

mod scene;
mod data;
mod answers;
mod sessions;
mod connections;
mod hostile;
