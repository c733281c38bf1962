//! Third-party copies: their commands, parameter lists and ROD tokens (SPC-4, 5.16).

pub(crate) mod cdb;
mod list;
mod token;
mod results;

pub use cdb::CopyResults;
pub use list::{CopyList, CopySegment, Cscd, limits};
pub use results::{CONCURRENT, CopyState, CopyStatus, operating_parameters};
pub use token::{
    PopulateToken, RANGES, ROD_TYPE, RodToken, TOKEN_BYTES, TokenRange, WriteUsingToken,
};
