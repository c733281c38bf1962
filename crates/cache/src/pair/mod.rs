//! A pair of gateways with one log on two legs. The active gateway serves the unit. The standby gateway keeps
//! its leg ready, and takes the unit over when the active one has failed.
//!
//! [`LogLeg`] is the leg that each gateway lends to the other. `plan` compares the labels of the legs, and
//! `member` is the behaviour of one gateway. The pair does not decide on its own which gateway may continue
//! alone: the lower volume grants one claim ([`crate::witness`]).
//!
//! | role | observation | action |
//! |---|---|---|
//! | active | the partner is on standby, and its leg was not used alone | extends the time of reads |
//! | active | the partner is on standby, and its leg is lost | fills the leg |
//! | active | no answer for `dead_after` | drops the partner's leg, requests to continue alone |
//! | active | an operator requests it, and the partner's leg is complete | hands the unit over |
//! | active | the cache is fenced | stops serving the unit |
//! | standby | the partner is active | waits |
//! | standby | no answer, and no use of the local leg, for `dead_after` | takes the unit over |
//! | standby | the partner is on standby | takes the unit over, see below |
//! | standby | an operator requests it, and the partner is not active | takes the unit over |
//!
//! If both are on standby, the one that goes first takes the unit over at once. The other one waits for twice
//! `dead_after`, unless the partner was active before. After a handover of its own, a member waits for ten
//! times `dead_after`.

mod bounded;
mod half;
mod host;
mod plan;
mod remedies;
mod member;

pub use half::LogLeg;
pub use host::{PairMemberAnswer, PairMemberHost, PairTiming};
pub use member::{PairMember, PairMemberStatus, Role};
