//! Tests sessions of the initiator with real targets. All tests are in one binary, which is linked only once.

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
mod objects;
