//! Vendor specific commands of Forebay (operation codes C0h and up): claims and coherence tokens.

mod claim;

pub use claim::{ClaimAction, ClaimParameters, ClaimReport};
