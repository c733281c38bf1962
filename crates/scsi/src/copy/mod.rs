//! Third-party copy: commands, lists and tokens (SPC-4, 5.16).

pub(crate) mod cdb;
mod list;
mod token;
mod results;

pub use cdb::CopyResults;
pub use list::{CopyList, Cscd, Segment, limits};
pub use results::{CONCURRENT, CopyState, CopyStatus, operating_parameters};
pub use token::{PopulateToken, RANGES, ROD_TYPE, TOKEN_BYTES, Token, TokenRange, WriteUsingToken};
