//! The services that a gateway provides to its member of a pair, such as opening the cache.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use volume::{Mirror, Stack};

use crate::Cache;

/// The context of a member: its link to the partner, and the unit that it serves.
pub trait PairMemberHost: Send + Sync + 'static {
    /// Opens a new session with the partner's leg. No call of an earlier session begins after this has
    /// returned.
    fn partner(&self) -> PairMemberAnswer<'_, Stack>;

    /// Ends all present sessions of the partner with the local leg. Commands of these sessions are refused, even if the
    /// partner sends them again. The partner can begin a new session.
    fn turn_partner_away(&self) -> PairMemberAnswer<'_, ()>;

    /// Checks that the far volume answers a request at this moment.
    fn far(&self) -> PairMemberAnswer<'_, ()>;

    /// Opens the cache ([`Cache::open_pair`]) with this log, and serves the unit. If the log has only one leg, first
    /// check that the far volume answers: each opening whose claim gets no answer takes an entry in the superblock's
    /// list of openings.
    fn serve(&self, log: Arc<Mirror>) -> PairMemberAnswer<'_, Arc<Cache>>;

    /// Stops serving the unit. With `at_rest`, the cache has everything in its log when this returns, because
    /// the partner will open the log. Otherwise the cache is not used any more.
    fn withdraw(&self, at_rest: bool) -> PairMemberAnswer<'_, ()>;
}

/// The future result of a call of [`PairMemberHost`]. The error is a text for people.
pub type PairMemberAnswer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Arc<str>>> + Send + 'a>>;

/// The time limits of a member, and which of two members goes first.
#[derive(Clone, Copy, Debug)]
pub struct PairTiming {
    /// After this time without an answer the partner counts as dead. A call to its leg that takes longer has
    /// failed.
    pub dead_after: Duration,
    /// True if this member, and not its partner, takes the unit over when both members are on standby.
    pub is_first: bool,
}

impl PairTiming {
    /// Returns the time between two questions to the partner. Six may be lost before the partner counts as
    /// dead.
    pub(super) fn look_every(&self) -> Duration {
        self.dead_after / 6
    }
}
