//! A pair of gateways with one log on two halves: one serves the unit, the other stands by with its
//! half and takes the unit over when the first is gone.
//!
//! [`LogLeg`] is what each gives the other, [`plan`] what the halves say of themselves, [`member`] what a
//! gateway does about it. Who may go on is not decided here: the lower volume grants one claim
//! ([`crate::witness`]).

mod bounded;
mod half;
mod host;
mod plan;
mod member;

pub use half::LogLeg;
pub use host::{PairMemberAnswer, PairMemberHost, PairTiming};
pub use member::{PairMember, PairMemberStatus, Role};
