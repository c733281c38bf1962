//! What a node and a gateway serve, by the binary: their settings, their commands, their files and their links.

#[path = "../support/mod.rs"]
mod support;
mod check;
mod counters;
mod encrypt;
mod naming;
mod older_state;
mod protocols;
mod reload;
mod settings;
mod tls;
mod tunnel;
mod unit_state;
