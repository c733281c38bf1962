//! Vendor specific commands of Forebay (operation codes C0h and up): claims and coherence tokens.

mod claim;
mod command;
mod operations;

pub use claim::{ClaimAction, ClaimParameters, ClaimReport};
pub use command::VendorCommand;
pub(crate) use operations::ROWS;
