//! Starts the programs that tests, benchmarks and the laboratory need on this machine: Forebay's
//! processes, relays, attached volumes and tgt. Uses all of them from outside, through command
//! lines, sockets and files.
//!
//! This crate depends on no crate of the product, so that `cargo xtask check` runs while the
//! product does not compile.

pub mod table;
pub mod packages;
pub mod build;
pub mod machine;
pub mod certificates;
pub mod node;
pub mod device;
pub mod destage;
pub mod tgt;
