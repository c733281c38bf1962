//! Support for the tests: the algorithm in plain Rust, an interpreter for the BPF programs, and a simulated path with
//! TCP senders that can use either of the two.

#![allow(dead_code)]

pub mod sock;
pub mod reference_window;
pub mod bpf_interpreter;
pub mod sender;
pub mod path;
pub mod reno;
pub mod reference_model;
