//! Several volumes in one log: opening them together, and removing one of them with its dirty data.

pub(crate) mod give_up;
pub(crate) mod common;
