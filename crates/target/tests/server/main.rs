//! Tests of the server on real TCP: commands, access, sessions, and shutdown.

#[path = "../../../transport/tests/certificates/mod.rs"]
mod certificates;
mod events;
mod access;
mod client;
mod attacks;
mod commands;
mod connections;
mod login_limits;
mod portal_groups;
mod processor;
mod object_unit;
mod sessions;
mod units;
mod tls;
