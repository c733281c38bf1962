//! Sessions of an object client with an object drive of a real process, seen and cut PDU by PDU.

#[path = "../support/mod.rs"]
mod support;
mod pdu_proxy;
mod scene;
mod cuts;
#[allow(dead_code)] // the tests of the crate osd make PDUs of their own
#[path = "../../../osd/tests/wire/capture.rs"]
mod capture;
#[path = "../../../osd/tests/wire/commands.rs"]
mod commands;
mod session;
