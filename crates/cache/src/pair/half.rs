//! The local leg of the log. The leg has one user at a time: the local cache or the partner.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
};

use parking_lot::Mutex;
use tokio::{
    sync::{OwnedRwLockReadGuard, RwLock},
    time::Instant,
};
use volume::{Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Stack, Volume};

/// A file or device that holds one leg of a mirrored log, and the session that may use it now.
pub struct LogLeg {
    disk: Stack,
    /// Each call holds this lock shared until the call has ended. A change of the user holds it exclusively.
    user: Arc<RwLock<LogLegUser>>,
    turns: AtomicU64,
    /// The time of the partner's last call.
    last_call: Mutex<Option<Instant>>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LogLegUser {
    None,
    /// The local cache is the user, in the turn with this number. Calls from its earlier turns fail.
    Here(u64),
    Partner,
}

impl LogLeg {
    /// Wraps the local leg of the mirrored log. At first neither gateway may use it.
    #[must_use]
    pub fn new(disk: Stack) -> Arc<Self> {
        Arc::new(Self {
            disk,
            user: Arc::new(RwLock::new(LogLegUser::None)),
            turns: AtomicU64::new(0),
            last_call: Mutex::default(),
        })
    }

    /// Returns the leg as the partner sees it: calls fail while the leg is not lent to the partner.
    #[must_use]
    pub fn for_partner(self: &Arc<Self>) -> Stack {
        Arc::new(LogLegAccess { half: Arc::clone(self), user: LogLegUser::Partner })
    }

    /// Makes the local cache the user of the leg. When this returns, no call of the former user is in
    /// progress. Later calls of the former user fail.
    pub(super) async fn take(self: &Arc<Self>) -> Stack {
        let user = LogLegUser::Here(self.turns.fetch_add(1, Ordering::Relaxed) + 1);
        *self.user.write().await = user;
        Arc::new(LogLegAccess { half: Arc::clone(self), user })
    }

    /// Makes the partner the user. See [`Self::take`].
    pub(super) async fn lend(&self) {
        *self.user.write().await = LogLegUser::Partner;
    }

    pub(super) fn last_call(&self) -> Option<Instant> {
        *self.last_call.lock()
    }

    async fn enter(
        self: Arc<Self>,
        user: LogLegUser,
    ) -> Result<OwnedRwLockReadGuard<LogLegUser>, Error> {
        let guard = Arc::clone(&self.user).read_owned().await;
        if *guard == user {
            return Ok(guard);
        }
        Err(match user {
            LogLegUser::Partner => IN_USE,
            _ => Error::Device("this leg of the log has another user now".into()),
        })
    }
}

/// The access of one user to the leg. Its calls fail when the leg has another user.
struct LogLegAccess {
    half: Arc<LogLeg>,
    user: LogLegUser,
}

impl LogLegAccess {
    fn note(&self) {
        if self.user == LogLegUser::Partner {
            *self.half.last_call.lock() = Some(Instant::now());
        }
    }

    /// Runs a change to its end even if the caller is dropped, so that the next user cannot begin in the
    /// middle of it.
    fn change<F>(&self, change: impl FnOnce(Stack) -> F + Send + 'static) -> Io<'_, ()>
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        self.note();
        let (half, user) = (Arc::clone(&self.half), self.user);
        let disk = Arc::clone(&half.disk);
        Io::new(async move {
            let mut entering = Io::new(half.enter(user));
            // Enter the queue of the lock now, so that later calls wait behind this one.
            let entered = futures_util::poll!(&mut entering);
            let work = tokio::spawn(async move {
                let _guard = match entered {
                    Poll::Ready(entered) => entered?,
                    Poll::Pending => entering.await?,
                };
                change(disk).await
            });
            work.await.unwrap_or_else(|_| Err(Error::Device("the process is ending".into())))
        })
    }
}

impl Volume for LogLegAccess {
    fn geometry(&self) -> Geometry {
        self.half.disk.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.note();
        let (half, user) = (Arc::clone(&self.half), self.user);
        Io::new(async move {
            let disk = Arc::clone(&half.disk);
            let _guard = half.enter(user).await?;
            disk.read(extent).await
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        self.change(move |disk| async move { disk.write(lba, data, durability).await })
    }

    /// Flushes after all calls that were begun before, including those of earlier sessions, have ended.
    fn flush(&self) -> Io<'_, ()> {
        self.note();
        let (half, user) = (Arc::clone(&self.half), self.user);
        Io::new(async move {
            drop(half.user.write().await);
            let disk = Arc::clone(&half.disk);
            let _guard = half.enter(user).await?;
            disk.flush().await
        })
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.change(move |disk| async move { disk.discard(extent).await })
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

/// The error that a partner gets for all calls, reads included, while the local gateway serves the unit. On
/// the wire it is DATA PROTECT, which no fault of a disk or of the link causes.
const IN_USE: Error = Error::ReadOnly;

/// Returns true if the partner has answered with [`IN_USE`].
pub(super) fn is_in_use(error: &Error) -> bool {
    matches!(error, Error::ReadOnly)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sim::AbilityProbe;
    use volume::{DelayVolume, Latency, MemVolume};

    use super::*;

    const EXTENT: Extent = Extent { lba: Lba(3), blocks: 1 };

    fn half() -> Arc<LogLeg> {
        let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(16) };
        let slow = Latency { write: Duration::from_millis(100), ..Latency::default() };
        LogLeg::new(Arc::new(DelayVolume::new(Arc::new(MemVolume::new(geometry)), slow)))
    }

    #[tokio::test]
    async fn a_leg_of_a_log_passes_no_optional_call() {
        let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(16) };
        let disk = Arc::new(AbilityProbe::new(geometry));
        let half = LogLeg::new(disk.clone());
        half.lend().await;
        let arrived = disk.calls_through(&*half.for_partner()).await;
        assert_eq!(arrived, ["flush_ahead -> flush", "examine -> read"]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_latest_borrower_can_use_the_leg() {
        let half = half();
        let partner = half.for_partner();
        assert!(partner.read(EXTENT).await.is_err());
        half.lend().await;
        assert!(partner.read(EXTENT).await.is_ok());
        let first = half.take().await;
        assert!(partner.read(EXTENT).await.is_err() && first.read(EXTENT).await.is_ok());
        let second = half.take().await;
        assert!(first.read(EXTENT).await.is_err() && second.read(EXTENT).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_write_changes_nothing_after_the_next_user_has_the_leg() {
        let half = half();
        half.lend().await;
        let partner = half.for_partner();
        let write = partner.write(EXTENT.lba, vec![7; 4096].into(), Durability::Stable);
        let given_up = tokio::time::timeout(Duration::from_millis(10), write).await;
        assert!(given_up.is_err());
        let here = half.take().await;
        let before = here.read(EXTENT).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(here.read(EXTENT).await.unwrap(), before, "nothing comes after");
    }
}
