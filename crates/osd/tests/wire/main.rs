//! Object commands on the wire, compared with bytes that were written down from the description of
//! OSD-2, with `docs/protocols.md`, and with Wireshark's dissector.
//!
//! The test with Wireshark needs `tshark` (Debian package tshark); `FOREBAY_NO_INTEROP=1` leaves it
//! out.

mod commands;
mod golden;
mod page;
mod linux;
mod capture;
mod exchange;
mod requests;
mod tshark;
