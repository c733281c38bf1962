//! A pair of gateways with one log on two legs. The active gateway serves the unit. The standby gateway keeps
//! its leg ready, and takes the unit over when the active one has failed.
//!
//! [`LogLeg`] is the leg that each gateway lends to the other. `plan` compares the labels of the legs, and
//! `member` is the behaviour of one gateway. The pair does not decide on its own which gateway may continue
//! alone: the lower volume grants one claim ([`crate::witness`]).

mod bounded;
mod half;
mod host;
mod plan;
mod member;

pub use half::LogLeg;
pub use host::{PairMemberAnswer, PairMemberHost, PairTiming};
pub use member::{PairMember, PairMemberStatus, Role};
