//! What several tests need.

pub mod tgt;
