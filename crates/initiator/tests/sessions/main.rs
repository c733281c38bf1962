//! Sessions of the initiator with real targets. One binary has all the tests: it links once.

mod support;
mod node;
mod write_cache;
mod deferred;
mod epochs;
mod claims;
mod connections;
mod portals;
mod compression;
mod tls;
mod hostile;
mod tgt;
