//! The link between the gateway and the node, and the node as the gateway sees it.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cache::Cache;
use parking_lot::Mutex;
use sim::Rng;
use tokio::sync::watch;
use volume::{
    Data, Durability, EpochRollback, Error, Extensions, Extent, FlushBegunCallback, Geometry, Io,
    Lba, OrderedFlush, Volume,
};

use super::{Site, Wrong};
use crate::support::model::{SECTOR, value_of};

/// The node's volume as the gateway accesses it over the link.
pub(super) struct Link {
    site: Arc<Site>,
    rng: Mutex<Rng>,
    unflushed: Mutex<Unflushed>,
    followed: Followed,
}

/// The flushes after which the gateway may send writes before the answer. The node performs such a write after the
/// flush.
#[derive(Default)]
struct Followed {
    /// The number of flushes that were sent.
    sent: AtomicU64,
    /// The number of flushes that have ended, at the node or because they were lost on the way. They end in order.
    ended: watch::Sender<u64>,
    /// The number of the newest flush behind which a write was sent.
    by_a_write: AtomicU64,
}

/// A flush that writes may follow before its answer. Dropping this counts the flush as ended.
struct OneFollowed<'a>(&'a Followed);

impl Drop for OneFollowed<'_> {
    fn drop(&mut self) {
        self.0.ended.send_modify(|ended| *ended += 1);
    }
}

/// The volatile writes that were acknowledged and not flushed, as an initiator records them (decision 0004): in the
/// order of the acknowledgments, each with the number of the node's start that has it.
#[derive(Default)]
struct Unflushed {
    answered: u64,
    writes: Vec<(u64, u64)>,
}

impl Unflushed {
    /// Returns, for each write that was acknowledged before the flush `begun`, the number of the node's start that
    /// received it.
    fn before(&self, begun: u64) -> impl Iterator<Item = u64> {
        let before = self.writes.iter().filter(move |(number, _)| *number <= begun);
        before.map(|&(_, incarnation)| incarnation)
    }

    /// Removes the writes up to number `begun`: they are stable, or their loss was reported.
    fn forget(&mut self, begun: u64) {
        self.writes.retain(|&(number, _)| number > begun);
    }
}

impl Link {
    pub(super) fn new(site: Arc<Site>, rng: Rng) -> Self {
        let (rng, unflushed) = (Mutex::new(rng), Mutex::default());
        Self { site, rng, unflushed, followed: Followed::default() }
    }

    /// Makes a call at the node, if the link and the node are up during the whole call.
    async fn call<T, F>(&self, call: impl FnOnce(Arc<Cache>) -> F) -> Result<(u64, T), Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.call_if(|_| true, call).await
    }

    /// Makes a call, if `may` permits it for the present start of the node; otherwise the call fails.
    async fn call_if<T, F>(
        &self,
        may: impl FnOnce(u64) -> bool,
        call: impl FnOnce(Arc<Cache>) -> F,
    ) -> Result<(u64, T), Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let away = || Error::Unreachable("the link is down".into());
        self.travel().await?;
        let mut up = self.site.up.subscribe();
        let (incarnation, node) = {
            let waited = up.wait_for(Option::is_some);
            let waited = tokio::time::timeout(Duration::from_millis(300), waited).await;
            let node = waited.map_err(|_| away())?.map_err(|_| away())?;
            node.clone().expect("it was waited for")
        };
        if !may(incarnation) {
            return Err(away());
        }
        let lost = up.wait_for(|up| up.as_ref().is_none_or(|(number, _)| *number != incarnation));
        let mut lost = pin!(lost);
        let answer = tokio::select! {
            biased;
            _ = &mut lost => return Err(away()),
            answer = call(node) => answer?,
        };
        self.travel().await?;
        Ok((incarnation, answer))
    }

    async fn travel(&self) -> Result<(), Error> {
        let delay = self.site.trial.script.delay;
        let (delay, away) = {
            let mut rng = self.rng.lock();
            (delay * rng.below(5) as u32 / 2, !delay.is_zero() && rng.chance(3))
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if self.site.cut.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if away { Err(Error::Unreachable("the link is down".into())) } else { Ok(()) }
    }

    fn note(&self, incarnation: u64) {
        let mut unflushed = self.unflushed.lock();
        unflushed.answered += 1;
        let number = unflushed.answered;
        unflushed.writes.push((number, incarnation));
    }

    /// Changes blocks of the node. Waits first until every flush that was sent before has ended.
    async fn change<F>(&self, change: impl FnOnce(Arc<Cache>) -> F) -> Result<u64, Error>
    where
        F: Future<Output = Result<(), Error>>,
    {
        let before = self.followed.sent.load(Ordering::SeqCst);
        let mut ended = self.followed.ended.subscribe();
        if *ended.borrow() < before
            && self.followed.by_a_write.swap(before, Ordering::SeqCst) != before
        {
            self.site.reached.lock()[4] += 1;
        }
        let waits = self.site.trial.wrong != Wrong::FlushOvertaken;
        let changed = self.call(|node| async move {
            if waits {
                let ended = ended.wait_for(|ended| *ended >= before).await;
                assert!(ended.is_ok(), "the link lasts longer than its calls");
            }
            change(node).await
        });
        Ok(changed.await?.0)
    }

    /// Flushes the node. Calls `begun` as soon as every later call is performed after the flush.
    async fn flush_node(&self, begun: Option<FlushBegunCallback<'_>>) -> Result<(), Error> {
        let lost = || Error::Device("the node has restarted".into());
        let number = {
            let mut unflushed = self.unflushed.lock();
            let number = unflushed.answered;
            let newest = unflushed.before(number).max();
            let half = unflushed.before(number).any(|incarnation| Some(incarnation) != newest);
            if half && self.site.trial.wrong != Wrong::HalfFlushed {
                // The node has lost a part of the epoch: a flush would make the rest of it stable.
                unflushed.forget(number);
                return Err(lost());
            }
            number
        };
        // The initiator sends a flush that writes may follow only in the present session with the node.
        let only_in = begun.as_ref().and_then(|_| self.site.up.borrow().as_ref().map(|up| up.0));
        let followed = begun.map(|begun| {
            self.followed.sent.fetch_add(1, Ordering::SeqCst);
            begun();
            OneFollowed(&self.followed)
        });
        let wrong = self.site.trial.wrong;
        let flush = |node: Arc<Cache>| async move {
            match wrong {
                Wrong::FlushNotSent => Ok(()),
                Wrong::FlushNotAwaited => {
                    tokio::spawn(async move { node.flush().await });
                    Ok(())
                }
                _ => node.flush().await,
            }
        };
        let has_followers = followed.is_some();
        let mut flushed = self
            .call_if(
                |incarnation| !has_followers || only_in == Some(incarnation),
                |node| async move {
                    let flushed = flush(node).await;
                    drop(followed);
                    flushed
                },
            )
            .await;
        if has_followers && flushed.is_err() {
            self.site.reached.lock()[5] += 1;
            if wrong == Wrong::FlushSentAgain {
                flushed = self.call(flush).await;
            }
        }
        let (incarnation, ()) = flushed?;
        let mut unflushed = self.unflushed.lock();
        let is_lost = unflushed.before(number).any(|write| write != incarnation);
        unflushed.forget(number);
        if is_lost { Err(lost()) } else { Ok(()) }
    }
}

impl Volume for Link {
    fn geometry(&self) -> Geometry {
        let geometry = self.site.trial.script.geometry;
        let known = self.site.epoch_blocks.load(Ordering::SeqCst);
        // With the fault `NoMarkers`, the gateway relies on epochs that the node does not have.
        let epoch_blocks = if self.site.trial.wrong == Wrong::NoMarkers { 800 } else { known };
        Geometry { epoch_blocks, ..geometry }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            let read = self.call(|node| async move { node.read(extent).await });
            Ok(read.await?.1)
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Io::new(async move {
            let mut copy = vec![0; data.len()];
            data.copy_to_slice(&mut copy);
            if durability == Durability::Stable {
                let first = lba.0 as usize * self.geometry().block_size as usize / SECTOR;
                let sectors = copy.chunks(SECTOR).enumerate();
                let values = sectors.filter_map(|(at, sector)| value_of(first + at, sector).ok());
                self.site.through.lock().extend(values);
            }
            let write =
                |node: Arc<Cache>| async move { node.write(lba, copy.into(), durability).await };
            let incarnation = self.change(write).await?;
            if durability == Durability::Volatile {
                self.note(incarnation);
            }
            Ok(())
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(self.flush_node(None))
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(async move {
            let discard = |node: Arc<Cache>| async move { node.discard(extent).await };
            let incarnation = self.change(discard).await?;
            self.note(incarnation);
            Ok(())
        })
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions { rollback: Some(self), ordered_flush: Some(self), ..Extensions::default() }
    }
}

impl EpochRollback for Link {
    fn roll_back(&self) -> Io<'_, ()> {
        Io::new(async move {
            if self.site.trial.wrong == Wrong::NoMarkers {
                return Ok(());
            }
            self.call(|node| async move { node.extensions().roll_back().await }).await?;
            self.unflushed.lock().writes.clear();
            Ok(())
        })
    }
}

impl OrderedFlush for Link {
    fn flush_ahead<'a>(&'a self, begun: FlushBegunCallback<'a>) -> Io<'a, ()> {
        Io::new(self.flush_node(Some(begun)))
    }
}
