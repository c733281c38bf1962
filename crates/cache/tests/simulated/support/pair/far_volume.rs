//! The node's volume, and the claim on it, as one session of a gateway accesses them.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use sim::{Power, Rng};
use tokio::time::sleep;
use volume::{
    Claim, Data, Durability, Error, ExclusiveWriter, Extensions, Extent, Geometry, Holding, Io,
    Lba, Volume,
};

use super::{Last, Node, Side, Wrong};

/// The node's volume, as one session of a gateway accesses it over a link.
pub(super) struct Far {
    pub(super) node: Arc<Node>,
    pub(super) side: Arc<Side>,
    pub(super) power: Arc<Power>,
    pub(super) session: u64,
    pub(super) wrong: Wrong,
    pub(super) asked: Arc<Mutex<Option<Asked>>>,
    pub(super) rng: Mutex<Rng>,
}

/// The claim that the gateway requested last.
pub(super) struct Asked {
    claim: Arc<Claim>,
    holding: Holding,
    /// True if the node has granted the claim, and the gateway has not received the answer yet.
    is_on_its_way: bool,
}

impl Far {
    fn is_up(&self) -> bool {
        self.side.to_node.load(Ordering::SeqCst) && !self.power.is_off()
    }

    /// Sends the requested claim to the node, unless that was done already.
    fn present(&self) {
        let mut asked = self.asked.lock();
        let Some(Asked { claim, holding, is_on_its_way }) = &mut *asked else { return };
        if *holding != Holding::Waiting || *is_on_its_way || !self.is_up() {
            return;
        }
        let mut last = self.node.last.lock();
        // Grant the claim by the rule of `unit::ownership`, for a single log.
        let is_granted = last.is_none_or(|last| {
            (last.opening, last.generation) == (claim.opening, claim.generation)
                || claim.predecessors.contains(&last.opening) && claim.generation > last.generation
        });
        if std::env::var_os("FOREBAY_PAIR_SEED").is_some() {
            println!(
                "claim of {} in session {}: generation {}, opening {:x}, after {:x?}: {is_granted}",
                claim.owner, self.session, claim.generation, claim.opening, claim.predecessors
            );
        }
        *holding = if is_granted || self.wrong == Wrong::EveryClaimGranted {
            let (opening, generation) = (claim.opening, claim.generation);
            *last = Some(Last { opening, generation, session: self.session });
            let mut rng = self.rng.lock();
            if rng.chance(if self.wrong == Wrong::StrayAnswers { 70 } else { 20 }) {
                // The answer is delayed: the gateway may have requested another claim when it arrives.
                let late = Duration::from_millis(rng.below(10_000));
                *is_on_its_way = true;
                tokio::spawn(deliver(Arc::clone(&self.asked), Arc::clone(claim), late, self.wrong));
                Holding::Waiting
            } else if rng.chance(20) {
                // The node has granted the claim, but its answer is lost.
                Holding::Waiting
            } else {
                Holding::Held
            }
        } else {
            Holding::Refused("another copy was taken up".into())
        };
    }

    pub(super) async fn travel(&self) -> Result<(), Error> {
        let delay = self.rng.lock().below(3000);
        sleep(Duration::from_micros(500 + delay)).await;
        if self.power.is_off() {
            std::future::pending::<()>().await;
        }
        if !self.is_up() {
            return Err(Error::Unreachable("the node is away".into()));
        }
        Ok(())
    }

    async fn enter(&self) -> Result<(), Error> {
        self.travel().await?;
        self.present();
        let is_owner = self.node.last.lock().is_some_and(|last| last.session == self.session);
        if is_owner { Ok(()) } else { Err(Error::Fenced("the volume is another one's".into())) }
    }
}

impl Volume for Far {
    fn geometry(&self) -> Geometry {
        self.node.memory.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            self.enter().await?;
            let data = self.node.memory.read(extent).await;
            self.travel().await?;
            data
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Io::new(async move {
            self.enter().await?;
            self.node.memory.write(lba, data, durability).await?;
            self.travel().await
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(self.enter())
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(async move {
            self.enter().await?;
            self.node.memory.discard(extent).await
        })
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions { writer: Some(self), ..Extensions::default() }
    }
}

impl ExclusiveWriter for Far {
    fn claim(&self, claim: Claim) -> Io<'_, Holding> {
        Io::new(async move {
            let alone = self.asked.lock().is_some();
            if alone && self.wrong == Wrong::NoWitness {
                return Ok(Holding::Held);
            }
            let (claim, holding) = (Arc::new(claim), Holding::Waiting);
            *self.asked.lock() = Some(Asked { claim, holding, is_on_its_way: false });
            let _ = self.travel().await;
            self.present();
            Ok(self.holding())
        })
    }

    fn holding(&self) -> Holding {
        self.present();
        // The initiator asks the node once a second whether the claim is still valid.
        let asked = self.asked.lock();
        let Some(Asked { claim, holding, .. }) = &*asked else { return Holding::Nothing };
        let is_lost = |last: Last| last.session != self.session && claim.generation > 0;
        if *holding == Holding::Held && self.is_up() && self.node.last.lock().is_some_and(is_lost) {
            return Holding::Refused("another copy was taken up".into());
        }
        holding.clone()
    }

    fn release(&self) -> Io<'_, ()> {
        Io::done(Ok(()))
    }
}

async fn deliver(
    asked: Arc<Mutex<Option<Asked>>>,
    answered: Arc<Claim>,
    late: Duration,
    wrong: Wrong,
) {
    sleep(late).await;
    if let Some(Asked { claim, holding, .. }) = &mut *asked.lock()
        && *holding == Holding::Waiting
        && (Arc::ptr_eq(claim, &answered) || wrong == Wrong::StrayAnswers)
    {
        *holding = Holding::Held;
    }
}
