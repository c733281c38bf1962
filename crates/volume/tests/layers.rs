//! What a layer does not answer itself goes down: none of them may swallow a call that was added
//! to `Volume` after it.

use std::sync::{Arc, Mutex};

use volume::{
    Allocation, CheckedVolume, Claim, Data, DelayVolume, Dirty, Durability, EncryptVolume, Error,
    Extent, FaultVolume, Geometry, Holding, Io, Keyring, Latency, Lba, ObserveVolume, Renewed,
    Stack, ThinSpaceUsage, Volume, VolumeKey,
};

#[tokio::test]
async fn what_a_layer_does_not_answer_goes_down() {
    for (name, layer) in LAYERS {
        let bottom = Arc::new(Bottom::default());
        let above = layer(bottom.clone());
        let extent = Extent { lba: Lba(8), blocks: 8 };
        let is_right = |_: &Data| true;

        let flushed = above.read_flushed(extent).await.unwrap();
        assert_eq!(flushed, above.read(extent).await.unwrap(), "{name}: decrypted alike");
        above.roll_back().await.unwrap();
        above.allocation(extent).await.unwrap();
        above.admit(4096).unwrap();
        above.examine(extent, &is_right).await.unwrap();
        assert_eq!(above.in_doubt(), [extent], "{name}");
        above.settle().await.unwrap();
        assert_eq!(above.usage(), Some(USAGE), "{name}");
        above.refresh();
        above.claim(claim()).await.unwrap();
        assert_eq!(above.holding(), Holding::Unsupported, "{name}");
        above.release().await.unwrap();
        if *name != "encrypt" {
            above.erase_key().await.unwrap();
        }

        let mut expected = vec![
            "read_flushed",
            "read",
            "roll_back",
            "allocation",
            "admit",
            "examine",
            "in_doubt",
            "settle",
            "usage",
            "refresh",
            "claim",
            "holding",
            "release",
            "erase_key",
        ];
        if *name == "encrypt" {
            expected.pop();
        }
        assert_eq!(*bottom.calls.lock().unwrap(), expected, "{name}");
    }
}

type Layer = fn(Stack) -> Stack;

const LAYERS: &[(&str, Layer)] = &[
    ("checked", |lower| Arc::new(CheckedVolume::new(lower))),
    ("delay", |lower| Arc::new(DelayVolume::new(lower, Latency::default()))),
    ("observe", |lower| Arc::new(ObserveVolume::new(lower))),
    ("fault", |lower| Arc::new(FaultVolume::new(lower))),
    ("encrypt", |lower| {
        let key = VolumeKey::new(&std::array::from_fn(|byte| byte as u8)).unwrap();
        Arc::new(EncryptVolume::new(lower, &key, NoKeyring))
    }),
];

const USAGE: ThinSpaceUsage = ThinSpaceUsage { used: 1, available: 2, shared: true };

/// Notes which calls reach it.
#[derive(Default)]
struct Bottom {
    calls: Mutex<Vec<&'static str>>,
}

impl Bottom {
    fn note(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }

    fn answer<T: Send + 'static>(&self, call: &'static str, answer: T) -> Io<'_, T> {
        self.note(call);
        Io::done(Ok(answer))
    }
}

impl Volume for Bottom {
    fn geometry(&self) -> Geometry {
        Geometry::with_blocks(64)
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.answer("read", vec![0x5a; extent.blocks as usize * 512].into())
    }

    fn read_flushed(&self, extent: Extent) -> Io<'_, Data> {
        self.answer("read_flushed", vec![0x5a; extent.blocks as usize * 512].into())
    }

    fn write(&self, _: Lba, _: Data, _: Durability) -> Io<'_, ()> {
        self.answer("write", ())
    }

    fn flush(&self) -> Io<'_, ()> {
        self.answer("flush", ())
    }

    fn discard(&self, _: Extent) -> Io<'_, ()> {
        self.answer("discard", ())
    }

    fn roll_back(&self) -> Io<'_, ()> {
        self.answer("roll_back", ())
    }

    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        self.answer("allocation", Allocation::mapped(extent.blocks))
    }

    fn erase_key(&self) -> Io<'_, ()> {
        self.answer("erase_key", ())
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        self.note("admit");
        Ok(())
    }

    fn examine<'a>(
        &'a self,
        _: Extent,
        _: &'a (dyn Fn(&Data) -> bool + Sync),
    ) -> Io<'a, Option<Data>> {
        self.answer("examine", None)
    }

    fn in_doubt(&self) -> Vec<Extent> {
        self.note("in_doubt");
        vec![Extent { lba: Lba(8), blocks: 8 }]
    }

    fn settle(&self) -> Io<'_, ()> {
        self.answer("settle", ())
    }

    fn usage(&self) -> Option<ThinSpaceUsage> {
        self.note("usage");
        Some(USAGE)
    }

    fn refresh(&self) {
        self.note("refresh");
    }

    fn claim(&self, _: Claim) -> Io<'_, Holding> {
        self.answer("claim", Holding::Unsupported)
    }

    fn holding(&self) -> Holding {
        self.note("holding");
        Holding::Unsupported
    }

    fn release(&self) -> Io<'_, ()> {
        self.answer("release", ())
    }
}

struct NoKeyring;

impl Keyring for NoKeyring {
    fn renew(&self) -> Io<'_, Renewed> {
        Io::done(Err(Error::Device("no other key".into())))
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
        confirmed: volume::Confirmed::default(),
        accept_loss: false,
    }
}
