//! Tests which optional calls each layer passes down. A layer must not swallow a call that was added to the trait
//! later, and must not begin to pass a call that it has withheld so far.

use std::sync::Arc;

use sim::{AbilityProbe, CrashVolume};
use volume::{
    CheckedVolume, DelayVolume, Dirty, DiskVolume, EncryptVolume, Error, Extent, FaultVolume,
    FileVolume, FileVolumeOptions, Geometry, Io, JoinedVolume, JoinedVolumeMember, Keyring,
    Latency, Lba, MemVolume, Mirror, ObserveVolume, Profile, Renewed, SliceVolume, Stack, Volume,
    VolumeKey, Watched,
};

/// The calls that reach the volume below a layer which passes on all calls except `flush_ahead`.
const ALL: &[&str] = &[
    "flush_ahead -> flush",
    "roll_back",
    "read_flushed",
    "allocation",
    "usage",
    "erase_key",
    "admit",
    "examine",
    "divergent",
    "make_equal",
    "refresh",
    "claim",
    "holding",
    "release",
    "send_requests",
    "receive_answers",
    "most_calls",
];

type Layer = fn(Stack) -> Stack;

const LAYERS: &[(&str, Layer)] = &[
    ("checked", |lower| Arc::new(CheckedVolume::new(lower))),
    ("watched", |lower| Arc::new(Watched::new(lower))),
    ("delay", |lower| Arc::new(DelayVolume::new(lower, Latency::default()))),
    ("disk", |lower| {
        Arc::new(DiskVolume::new(lower, Profile::named("null").expect("a known disk")))
    }),
    ("observe", |lower| Arc::new(ObserveVolume::new(lower))),
    ("fault", |lower| Arc::new(FaultVolume::new(lower))),
    ("encrypt", |lower| {
        let key = VolumeKey::new(&std::array::from_fn(|byte| byte as u8)).unwrap();
        Arc::new(EncryptVolume::new(lower, &key, NoKeyring))
    }),
    ("slice", |lower| Arc::new(SliceVolume::new(lower, Lba(0), 64).expect("inside"))),
    ("joined", |lower| {
        let (granted, opening, is_dirty) = (0, 0, Dirty::default());
        let member = JoinedVolumeMember { name: "probe".into(), lower, granted, opening, is_dirty };
        Arc::new(JoinedVolume::new(vec![Some(member)]).expect("it can be joined"))
    }),
];

/// Returns the calls that the layer `name` passes to the volume below it.
fn expected(name: &str) -> Vec<&'static str> {
    match name {
        "observe" => ALL.iter().map(|call| call.trim_end_matches(" -> flush")).collect(),
        "encrypt" => ALL.iter().copied().filter(|call| *call != "erase_key").collect(),
        // A slice does not pass on the other abilities, because they concern blocks outside of the slice, too.
        "slice" => {
            vec!["flush_ahead -> flush", "allocation", "admit", "examine -> read", "refresh"]
        }
        // The list has no flush, because a joined volume flushes only members that were written to.
        "joined" => vec![
            "roll_back",
            "allocation",
            "admit",
            "examine -> read",
            "refresh",
            "claim",
            "holding",
            "release",
        ],
        _ => ALL.to_vec(),
    }
}

fn probe() -> Arc<AbilityProbe> {
    Arc::new(AbilityProbe::new(Geometry { epoch_blocks: 800, ..Geometry::with_blocks(64) }))
}

#[tokio::test]
async fn each_layer_passes_exactly_the_listed_calls() {
    for (name, layer) in LAYERS {
        let bottom = probe();
        let above = layer(bottom.clone());
        assert_eq!(bottom.calls_through(&*above).await, expected(name), "{name}");
    }
}

#[tokio::test]
async fn each_layer_transforms_reads_of_flushed_data_like_other_reads() {
    for (name, layer) in LAYERS.iter().filter(|(name, _)| !["slice", "joined"].contains(name)) {
        let bottom = probe();
        let filled = vec![0x5a; 4096].into();
        bottom.write(Lba(8), filled, volume::Durability::Volatile).await.unwrap();
        let above = layer(bottom);
        let extent = Extent { lba: Lba(8), blocks: 8 };
        let flushed = above.extensions().read_flushed(extent).await.unwrap();
        assert_eq!(flushed, above.read(extent).await.unwrap(), "{name}: decrypted alike");
    }
}

#[tokio::test]
async fn each_bottom_volume_has_exactly_the_listed_abilities() {
    let memory = MemVolume::new(Geometry::with_blocks(64));
    assert_eq!(AbilityProbe::answered(&memory).await, ["allocation"], "memory");
    let crash = CrashVolume::new(Geometry::with_blocks(64), 1);
    assert_eq!(AbilityProbe::answered(&crash).await, [""; 0], "a disk that loses power");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("volume");
    let file = FileVolume::open(&FileVolumeOptions {
        create: Some(32 << 10),
        ..FileVolumeOptions::new(path)
    });
    let file = file.expect("opened");
    assert_eq!(AbilityProbe::answered(&file).await, ["allocation", "usage"], "file");
}

/// A mirror must not pass on the abilities of a leg, because they would concern one copy of the blocks only.
#[tokio::test]
async fn a_mirror_passes_no_optional_call_and_offers_its_own_copies() {
    let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(2048) };
    let half = Arc::new(AbilityProbe::new(geometry));
    let other = Arc::new(MemVolume::new(geometry));
    let halves = [Some(half.clone() as Stack), Some(other as Stack)];
    let mirror = Mirror::open(halves, [7; 16], false).await.expect("a mirror");
    let arrived = half.calls_through(&mirror).await;
    // An entry with " -> " is an optional call that has arrived as a plain read, write or flush. No optional call
    // itself may arrive at a leg.
    assert!(arrived.iter().all(|call| call.contains(" -> ")), "{arrived:?}");
    assert_eq!(AbilityProbe::answered(&mirror).await, [""; 0]);
}

struct NoKeyring;

impl Keyring for NoKeyring {
    fn renew(&self) -> Io<'_, Renewed> {
        Io::done(Err(Error::Device("no other key".into())))
    }
}
