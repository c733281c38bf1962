//! The algorithm in plain Rust, its programs in an interpreter, and a path for TCP senders in virtual time that can
//! use either.

#![allow(dead_code)]

pub mod sock;
pub mod reference_window;
pub mod bpf_interpreter;
pub mod sender;
pub mod path;
pub mod reno;
pub mod reference_model;
