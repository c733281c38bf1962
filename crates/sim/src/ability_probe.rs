//! A volume for tests that lists the optional calls that arrive at it. A test puts a layer over it to find out which
//! calls the layer passes on.

use std::{mem::take, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use volume::{
    Allocation, Claim, CoherenceChannel, Confirmed, Data, Dirty, Durability, EpochRollback,
    ErasableKey, Error, ExclusiveWriter, Extensions, Extent, FlushBegunCallback, FlushedReads,
    Geometry, Holding, Io, Lba, MemVolume, OrderedFlush, Provisioning, RedundantCopies, Resizable,
    ThinSpaceUsage, Volume, examine, flush_ahead,
};

/// A volume in memory that has every optional ability and lists the calls that arrive, [`Volume::geometry`] excepted.
pub struct AbilityProbe {
    memory: MemVolume,
    calls: Mutex<Vec<&'static str>>,
}

/// The extent that [`AbilityProbe`] passes to every optional call.
const EXTENT: Extent = Extent { lba: Lba(8), blocks: 8 };
const USAGE: ThinSpaceUsage = ThinSpaceUsage { used: 1, available: 2, shared: true };
const MOST_CALLS: usize = 77;

impl AbilityProbe {
    /// Creates an empty volume with this geometry.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        Self { memory: MemVolume::new(geometry), calls: Mutex::default() }
    }

    /// Performs each optional call, and [`Volume::admit`], on `above`, which is a layer over this volume. Returns a
    /// text for each call after which a call arrived at this volume: `call` if exactly the same call arrived, and `call
    /// -> others` if the layer made other calls.
    ///
    /// # Panics
    /// If the same call arrived, but `above` did not return the answer of this volume.
    pub async fn calls_through(&self, above: &dyn Volume) -> Vec<String> {
        self.calls.lock().clear();
        let mut listed = Vec::new();
        // Notes which calls have arrived for the call `asked`. Returns true if exactly this call has arrived.
        let mut note = |asked: &str| {
            let arrived = take(&mut *self.calls.lock());
            let is_passed = arrived == [asked];
            if is_passed {
                listed.push(asked.to_owned());
            } else if !arrived.is_empty() {
                listed.push(format!("{asked} -> {}", arrived.join(", ")));
            }
            is_passed
        };
        let flushed = flush_ahead(above, Box::new(|| ())).await;
        assert!(!note("flush_ahead") || flushed.is_ok());
        let rolled_back = above.extensions().roll_back().await;
        assert!(!note("roll_back") || rolled_back.is_ok());
        let read = above.extensions().read_flushed(EXTENT).await;
        assert!(!note("read_flushed") || read.is_ok());
        let allocation = above.extensions().allocation(EXTENT).await;
        assert!(!note("allocation") || !allocation.unwrap().runs()[0].mapped);
        let usage = above.extensions().usage();
        assert!(!note("usage") || usage == Some(USAGE));
        let erased = above.extensions().erase_key().await;
        assert!(!note("erase_key") || erased.is_ok());
        let admitted = above.admit(4096);
        assert!(!note("admit") || admitted.is_ok());
        let examined = examine(above, EXTENT, &|_| true).await;
        assert!(!note("examine") || examined.unwrap().is_some());
        let divergent = above.extensions().divergent();
        assert!(!note("divergent") || divergent == [EXTENT]);
        let settled = above.extensions().make_equal().await;
        assert!(!note("make_equal") || settled.is_ok());
        above.extensions().refresh();
        note("refresh");
        let holding = above.extensions().claim(claim()).await;
        assert!(!note("claim") || holding.unwrap() == Holding::Held);
        let holding = above.extensions().holding();
        assert!(!note("holding") || holding == Holding::Held);
        let released = above.extensions().release().await;
        assert!(!note("release") || released.is_ok());
        let asked = above.extensions().send_requests(Bytes::new()).await;
        assert!(!note("send_requests") || asked.is_ok());
        let answers = above.extensions().receive_answers(Duration::ZERO).await;
        assert!(!note("receive_answers") || answers.is_ok());
        if above.extensions().most_calls == Some(MOST_CALLS) {
            listed.push("most_calls".to_owned());
        }
        listed
    }

    /// Performs each optional call on any `volume`. Returns the calls whose answer differs from the answer of a volume
    /// without the ability. `refresh`, `make_equal` and `release` are left out, because all volumes give the same
    /// answer to them.
    pub async fn answered(volume: &dyn Volume) -> Vec<&'static str> {
        let mut answered = Vec::new();
        let mut note = |asked: &'static str, is_answered: bool| {
            if is_answered {
                answered.push(asked);
            }
        };
        let mut is_begun = false;
        drop(flush_ahead(volume, Box::new(|| is_begun = true)).await);
        note("flush_ahead", is_begun);
        let error = volume.extensions().roll_back().await.err();
        note("roll_back", has(error, "the volume has no epochs"));
        let error = volume.extensions().read_flushed(EXTENT).await.err();
        note("read_flushed", has(error, "the volume has no epochs"));
        let allocation = volume.extensions().allocation(EXTENT).await;
        note("allocation", allocation.is_ok_and(|allocation| !allocation.runs()[0].mapped));
        note("usage", volume.extensions().usage().is_some());
        let error = volume.extensions().erase_key().await.err();
        note("erase_key", has(error, "it has no key to erase"));
        note("divergent", !volume.extensions().divergent().is_empty());
        note("most_calls", volume.extensions().most_calls.is_some());
        let holding = volume.extensions().claim(claim()).await;
        note("claim", !holding.is_ok_and(|holding| holding == Holding::Unsupported));
        note("holding", volume.extensions().holding() != Holding::Unsupported);
        let error = volume.extensions().send_requests(Bytes::new()).await.err();
        note("send_requests", has(error, "the volume is not shared"));
        let error = volume.extensions().receive_answers(Duration::ZERO).await.err();
        note("receive_answers", has(error, "the volume is not shared"));
        answered
    }

    fn answer<T: Send + 'static>(&self, call: &'static str, answer: T) -> Io<'_, T> {
        self.note(call);
        Io::done(Ok(answer))
    }

    fn note(&self, call: &'static str) {
        self.calls.lock().push(call);
    }
}

/// Returns true unless the call failed with the error of a volume that lacks the ability.
fn has(error: Option<Error>, lacks: &str) -> bool {
    match error {
        Some(Error::Device(why)) => &*why != lacks,
        _ => true,
    }
}

fn claim() -> Claim {
    Claim {
        owner: "test".into(),
        instance: [1; 16],
        generation: 1,
        opening: 1,
        granted: 0,
        predecessors: Vec::new(),
        writes_back: false,
        is_dirty: Dirty::default(),
        takes_over: false,
        shares: false,
        confirmed: Confirmed::default(),
        accept_loss: false,
    }
}

impl Volume for AbilityProbe {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.note("read");
        self.memory.read(extent)
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        self.note("write");
        self.memory.write(lba, data, durability)
    }

    fn flush(&self) -> Io<'_, ()> {
        self.answer("flush", ())
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.note("discard");
        self.memory.discard(extent)
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        self.note("admit");
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            provisioning: Some(self),
            resizable: Some(self),
            rollback: Some(self),
            flushed_reads: Some(self),
            ordered_flush: Some(self),
            key: Some(self),
            copies: Some(self),
            writer: Some(self),
            coherence: Some(self),
            most_calls: Some(MOST_CALLS),
        }
    }
}

impl Provisioning for AbilityProbe {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        self.note("allocation");
        self.memory.extensions().allocation(extent)
    }

    fn usage(&self) -> Option<ThinSpaceUsage> {
        self.note("usage");
        Some(USAGE)
    }
}

impl Resizable for AbilityProbe {
    fn refresh(&self) {
        self.note("refresh");
    }
}

impl EpochRollback for AbilityProbe {
    fn roll_back(&self) -> Io<'_, ()> {
        self.answer("roll_back", ())
    }
}

impl FlushedReads for AbilityProbe {
    fn read_flushed(&self, extent: Extent) -> Io<'_, Data> {
        self.note("read_flushed");
        self.memory.read(extent)
    }
}

impl OrderedFlush for AbilityProbe {
    fn flush_ahead<'a>(&'a self, begun: FlushBegunCallback<'a>) -> Io<'a, ()> {
        begun();
        self.answer("flush_ahead", ())
    }
}

impl ErasableKey for AbilityProbe {
    fn erase_key(&self) -> Io<'_, ()> {
        self.answer("erase_key", ())
    }
}

impl RedundantCopies for AbilityProbe {
    fn examine<'a>(
        &'a self,
        extent: Extent,
        is_right: &'a (dyn Fn(&Data) -> bool + Sync),
    ) -> Io<'a, Option<Data>> {
        self.note("examine");
        let read = self.memory.read(extent);
        Io::new(async move { Ok(Some(read.await?).filter(is_right)) })
    }

    fn divergent(&self) -> Vec<Extent> {
        self.note("divergent");
        vec![EXTENT]
    }

    fn make_equal(&self) -> Io<'_, ()> {
        self.answer("make_equal", ())
    }
}

impl ExclusiveWriter for AbilityProbe {
    fn claim(&self, _: Claim) -> Io<'_, Holding> {
        self.answer("claim", Holding::Held)
    }

    fn holding(&self) -> Holding {
        self.note("holding");
        Holding::Held
    }

    fn release(&self) -> Io<'_, ()> {
        self.answer("release", ())
    }
}

impl CoherenceChannel for AbilityProbe {
    fn send_requests(&self, _: Bytes) -> Io<'_, ()> {
        self.answer("send_requests", ())
    }

    fn receive_answers(&self, _: Duration) -> Io<'_, Bytes> {
        self.answer("receive_answers", Bytes::new())
    }
}
