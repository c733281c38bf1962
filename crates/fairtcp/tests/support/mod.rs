//! The algorithm in plain Rust, an interpreter for its programs, and a path for TCP senders in virtual time
//! that can use either of the two.

#![allow(dead_code)]

pub mod sock;
pub mod reference_window;
pub mod bpf_interpreter;
pub mod sender;
pub mod path;
pub mod reno;
pub mod reference_model;
