//! Several volumes in one log: opening them together, and giving one of them up.

pub(crate) mod give_up;
pub(crate) mod common;
