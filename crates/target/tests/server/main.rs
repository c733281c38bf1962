//! The server on real TCP: what it serves, to whom, and how it stops.

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
mod sessions;
mod units;
mod tls;
