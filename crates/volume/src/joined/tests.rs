//! Tests joined volumes with members in memory: addresses, flushes, roll-backs and claims.

use std::{
    future::pending,
    pin::Pin,
    sync::atomic::AtomicBool,
    task::{Context, Waker},
};

use super::*;
use crate::{MemVolume, testing::now};

/// A volume in memory that records flushes, roll-backs and claims.
struct Noted {
    memory: MemVolume,
    calls: Mutex<Vec<&'static str>>,
    asked: Mutex<Option<Claim>>,
    holding: Holding,
    flush_fails: AtomicBool,
    flush_hangs: AtomicBool,
    grown_by: AtomicU64,
    epoch_blocks: u64,
}

impl Noted {
    fn new(blocks: u64) -> Self {
        Self {
            memory: MemVolume::new(Geometry::with_blocks(blocks)),
            calls: Mutex::default(),
            asked: Mutex::default(),
            holding: Holding::Held,
            flush_fails: AtomicBool::new(false),
            flush_hangs: AtomicBool::new(false),
            grown_by: AtomicU64::new(0),
            epoch_blocks: 0,
        }
    }

    fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.calls.lock())
    }

    fn note(&self, call: &'static str) -> Io<'_, ()> {
        self.calls.lock().push(call);
        if call == "flush" && self.flush_hangs.load(Ordering::SeqCst) {
            return Io::new(pending());
        }
        let fails = call == "flush" && self.flush_fails.swap(false, Ordering::SeqCst);
        let lost = || Err(Error::Device("it was lost".into()));
        Io::done(if fails { lost() } else { Ok(()) })
    }
}

impl Volume for Noted {
    fn geometry(&self) -> Geometry {
        let geometry = self.memory.geometry();
        let blocks = geometry.blocks + self.grown_by.load(Ordering::SeqCst);
        Geometry { blocks, epoch_blocks: self.epoch_blocks, ..geometry }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.memory.read(extent)
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        self.memory.write(lba, data, durability)
    }

    fn flush(&self) -> Io<'_, ()> {
        self.note("flush")
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.memory.discard(extent)
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions { rollback: Some(self), writer: Some(self), ..Extensions::default() }
    }
}

impl EpochRollback for Noted {
    fn roll_back(&self) -> Io<'_, ()> {
        self.note("roll back")
    }
}

impl ExclusiveWriter for Noted {
    fn claim(&self, claim: Claim) -> Io<'_, Holding> {
        *self.asked.lock() = Some(claim);
        Io::done(Ok(self.holding.clone()))
    }

    fn holding(&self) -> Holding {
        self.holding.clone()
    }

    fn release(&self) -> Io<'_, ()> {
        self.note("release")
    }
}

fn member(name: &str, lower: &Arc<Noted>) -> Option<JoinedVolumeMember> {
    let (granted, opening, is_dirty) = (0, 0, Dirty::default());
    let lower = Arc::clone(lower) as Stack;
    Some(JoinedVolumeMember { name: name.into(), lower, granted, opening, is_dirty })
}

/// Joins two members, with an empty region between them.
fn joined(a: &Arc<Noted>, b: &Arc<Noted>) -> JoinedVolume {
    JoinedVolume::new(vec![member("a", a), None, member("b", b)]).expect("they can be joined")
}

fn pair() -> (Arc<Noted>, Arc<Noted>) {
    (Arc::new(Noted::new(100)), Arc::new(Noted::new(50)))
}

fn write(joined: &JoinedVolume, lba: u64) -> Result<(), Error> {
    now(joined.write(Lba(lba), Data::from(vec![lba as u8 | 1; 512]), Durability::Volatile))
}

#[test]
fn each_member_has_its_own_region() {
    let (a, b) = pair();
    let joined = joined(&a, &b);
    let far = 2 * joined.stride();
    write(&joined, far + 7).expect("written");
    let one = |lba| Extent { lba: Lba(lba), blocks: 1 };
    let there = now(b.read(one(7))).expect("read").into_bytes();
    assert_eq!(there, now(joined.read(one(far + 7))).expect("read").into_bytes());
    assert_eq!(there[..], [7; 512]);
    assert!(now(a.read(one(7))).expect("read").into_bytes().iter().all(|&byte| byte == 0));
    now(joined.discard(one(far + 7))).expect("discarded");
    assert!(now(b.read(one(7))).expect("read").into_bytes().iter().all(|&byte| byte == 0));
}

#[test]
fn no_call_goes_beyond_the_end_of_a_member() {
    let (a, b) = pair();
    let joined = joined(&a, &b);
    let stride = joined.stride();
    for (lba, blocks) in
        [(99, 2), (100, 1), (stride, 1), (2 * stride + 50, 1), (3 * stride, 1), (u64::MAX, 1)]
    {
        let extent = Extent { lba: Lba(lba), blocks };
        let refused = |e: &Error| matches!(e, Error::OutOfRange(found) if *found == extent);
        assert!(now(joined.read(extent)).is_err_and(|e| refused(&e)), "{lba}");
        assert!(now(joined.discard(extent)).is_err_and(|e| refused(&e)), "{lba}");
        assert!(now(joined.extensions().allocation(extent)).is_err_and(|e| refused(&e)), "{lba}");
    }
    assert!(write(&joined, 100).is_err());
}

#[test]
fn a_flush_is_sent_to_written_members_and_to_no_other() {
    let (a, b) = pair();
    let joined = joined(&a, &b);
    let far = 2 * joined.stride();
    write(&joined, far).expect("written");
    now(joined.flush()).expect("flushed");
    assert_eq!((a.calls(), b.calls()), (vec![], vec!["flush"]));
    now(joined.flush()).expect("flushed");
    assert_eq!(b.calls(), [""; 0]);
    write(&joined, 1).expect("written");
    write(&joined, far).expect("written");
    b.flush_fails.store(true, Ordering::SeqCst);
    let failed = now(joined.flush()).expect_err("it lost something");
    assert!(failed.to_string().contains("b: it was lost"), "{failed}");
    assert_eq!((a.calls(), b.calls()), (vec!["flush"], vec!["flush"]));
    // The second flush calls only the member whose first flush has failed.
    now(joined.flush()).expect("flushed");
    assert_eq!((a.calls(), b.calls()), (vec![], vec!["flush"]));
}

fn drop_flush(joined: &JoinedVolume) {
    let mut flush = joined.flush();
    assert!(Pin::new(&mut flush).poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[test]
fn members_that_a_cancelled_flush_did_not_flush_are_flushed_by_the_next() {
    let (a, b) = pair();
    let joined = joined(&a, &b);
    let far = 2 * joined.stride();
    write(&joined, 1).expect("written");
    write(&joined, far).expect("written");
    b.flush_hangs.store(true, Ordering::SeqCst);
    drop_flush(&joined);
    assert_eq!((a.calls(), b.calls()), (vec!["flush"], vec!["flush"]));
    b.flush_hangs.store(false, Ordering::SeqCst);
    now(joined.flush()).expect("flushed");
    assert_eq!((a.calls(), b.calls()), (vec![], vec!["flush"]));
}

#[test]
fn a_loss_reported_to_a_cancelled_flush_is_reported_to_the_next_one() {
    let (a, b) = pair();
    let joined = joined(&a, &b);
    write(&joined, 1).expect("written");
    write(&joined, 2 * joined.stride()).expect("written");
    a.flush_fails.store(true, Ordering::SeqCst);
    b.flush_hangs.store(true, Ordering::SeqCst);
    drop_flush(&joined);
    b.flush_hangs.store(false, Ordering::SeqCst);
    let told = now(joined.flush()).expect_err("a has lost something");
    assert!(told.to_string().contains("a: it was lost"), "{told}");
    // The loss was reported to the previous flush, so this one does not report it again.
    now(joined.flush()).expect("flushed");
}

#[test]
fn a_loss_before_a_roll_back_does_not_fail_the_next_flush() {
    let (mut a, b) = (Noted::new(100), Arc::new(Noted::new(50)));
    a.epoch_blocks = 80;
    let a = Arc::new(a);
    let joined = joined(&a, &b);
    write(&joined, 1).expect("written");
    write(&joined, 2 * joined.stride()).expect("written");
    a.flush_fails.store(true, Ordering::SeqCst);
    b.flush_hangs.store(true, Ordering::SeqCst);
    drop_flush(&joined);
    b.flush_hangs.store(false, Ordering::SeqCst);
    now(joined.extensions().roll_back()).expect("rolled back");
    now(joined.flush()).expect("flushed");
}

#[test]
fn a_flush_does_not_rely_on_another_flush_in_progress() {
    let (a, b) = pair();
    let joined = joined(&a, &b);
    write(&joined, 1).expect("written");
    a.flush_hangs.store(true, Ordering::SeqCst);
    let mut first = joined.flush();
    let mut context = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut first).poll(&mut context).is_pending());
    assert!(Pin::new(&mut joined.flush()).poll(&mut context).is_pending(), "a has not answered");
    a.flush_hangs.store(false, Ordering::SeqCst);
    now(joined.flush()).expect("flushed");
    assert_eq!(a.calls(), ["flush"; 3]);
}

#[test]
fn a_member_that_outgrows_its_region_gets_no_calls_behind_its_end() {
    let (a, b) = pair();
    let joined = JoinedVolume::new(vec![member("a", &a), member("b", &b)]).expect("joined");
    let stride = joined.stride();
    a.grown_by.store(stride, Ordering::SeqCst);
    for (lba, blocks) in [(stride - 1, 2), (stride - 8, 16), (stride + 50, 1)] {
        let extent = Extent { lba: Lba(lba), blocks };
        let refused = |e: &Error| matches!(e, Error::OutOfRange(found) if *found == extent);
        assert!(now(joined.read(extent)).is_err_and(|e| refused(&e)), "{lba}");
        assert!(now(joined.extensions().allocation(extent)).is_err_and(|e| refused(&e)), "{lba}");
    }
    let data = Data::zeros(1024);
    assert!(now(joined.write(Lba(stride - 1), data, Durability::Volatile)).is_err());
}

#[test]
fn members_with_epochs_are_rolled_back_and_the_smallest_epoch_limit_is_reported() {
    let (mut a, mut b) = (Noted::new(100), Noted::new(50));
    (a.epoch_blocks, b.epoch_blocks) = (80, 30);
    let (a, b, c) = (Arc::new(a), Arc::new(b), Arc::new(Noted::new(9)));
    let joined = JoinedVolume::new(vec![member("a", &a), member("b", &b), member("c", &c)]);
    let joined = joined.expect("they can be joined");
    assert_eq!(joined.geometry().epoch_blocks, 30);
    now(joined.extensions().roll_back()).expect("rolled back");
    assert_eq!((a.calls(), b.calls(), c.calls()), (vec!["roll back"], vec!["roll back"], vec![]));
}

fn claim() -> Claim {
    Claim {
        owner: "test".into(),
        instance: [1; 16],
        generation: 9,
        opening: 90,
        granted: 8,
        predecessors: vec![70, 80],
        writes_back: true,
        is_dirty: Dirty::new(true),
        takes_over: false,
        shares: false,
        confirmed: crate::Confirmed::default(),
        accept_loss: false,
    }
}

#[test]
fn each_member_is_claimed_with_the_generation_that_it_granted() {
    let (a, b) = pair();
    let mut first = member("a", &a).expect("there");
    (first.granted, first.opening, first.is_dirty) = (7, 70, Dirty::new(true));
    let joined = JoinedVolume::new(vec![Some(first), member("b", &b)]).expect("joined");
    assert_eq!(now(joined.claim(claim())).expect("answered"), Holding::Held);
    let asked = |noted: &Noted| {
        let asked = noted.asked.lock().clone().expect("asked");
        (asked.granted, asked.predecessors, asked.is_dirty.get(), asked.opening)
    };
    assert_eq!(asked(&a), (7, vec![70, 80], true, 90));
    assert_eq!(asked(&b), (0, vec![70, 80], false, 90));
}

#[test]
fn a_claim_names_the_opening_that_a_member_granted_though_the_list_has_lost_it() {
    let (a, b) = pair();
    let mut first = member("a", &a).expect("there");
    (first.granted, first.opening) = (9, 80);
    let mut second = member("b", &b).expect("there");
    // `second` was granted opening 75, which the list of predecessors does not contain any more.
    (second.granted, second.opening) = (9, 75);
    let joined = JoinedVolume::new(vec![Some(first), Some(second)]).expect("joined");
    assert_eq!(now(joined.claim(claim())).expect("answered"), Holding::Held);
    let asked = |noted: &Noted| noted.asked.lock().clone().expect("asked").predecessors;
    assert_eq!((asked(&a), asked(&b)), (vec![80], vec![75, 80]));
}

#[test]
fn one_refused_claim_refuses_all_and_claims_of_clean_members_are_returned() {
    let (mut a, mut b, mut c) = (Noted::new(9), Noted::new(9), Noted::new(9));
    a.holding = Holding::Held;
    b.holding = Holding::Refused("it is another's".into());
    c.holding = Holding::Waiting;
    let (a, b, c) = (Arc::new(a), Arc::new(b), Arc::new(c));
    let mut dirty = member("c", &c).expect("there");
    dirty.is_dirty = Dirty::new(true);
    let joined = JoinedVolume::new(vec![member("a", &a), member("b", &b), Some(dirty)]);
    let joined = joined.expect("joined");
    let refused = Holding::Refused("b: it is another's".into());
    assert_eq!(now(joined.claim(claim())).expect("answered"), refused);
    assert_eq!(joined.holding(), refused);
    let give_back = async {
        joined.give_back().await;
        Ok(())
    };
    now(Io::new(give_back)).expect("given back");
    assert_eq!((a.calls(), c.calls()), (vec!["release"], vec![]));
}

#[test]
fn volumes_that_cannot_be_joined_are_refused() {
    let (a, _) = pair();
    assert!(JoinedVolume::new(vec![None]).is_err());
    let large = Geometry { block_size: 4096, ..Geometry::with_blocks(8) };
    let large = Arc::new(Noted { memory: MemVolume::new(large), ..Noted::new(9) });
    let refused = JoinedVolume::new(vec![member("a", &a), member("large", &large)]).err();
    let text = refused.expect("their blocks differ").to_string();
    assert!(text.contains("a has blocks of 512 bytes, and large of 4096"), "{text}");
    let many = (0..=JoinedVolume::PLACES).map(|_| member("a", &a)).collect();
    assert!(JoinedVolume::new(many).is_err());
}
