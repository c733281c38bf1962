//! The block unit as an initiator sees it: CDBs and data in, completions out.

mod host;
mod describe;
mod transfer;
mod verify;
mod exclusive;
mod status;
mod sanitize;
mod restart;
mod party;
mod copy;
mod token;
mod large;
mod provisioning;
mod attention;
mod reservation;
mod reserve;
mod modes;
mod medium;
mod maintenance;
mod logs;
mod ports;
mod resize;
mod order;
mod random;
mod failure;
mod attacks;
