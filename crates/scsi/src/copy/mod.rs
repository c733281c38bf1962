//! Third-party copy: commands, lists and tokens (SPC-4, 5.16).

pub(crate) mod cdb;

pub use cdb::CopyResults;
