//! Tests of a serving node and gateway as programs: settings, commands, files and links.

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
