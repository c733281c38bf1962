//! Tests the claim of a cache on its unit: it is granted, presented again after every login, and taken over. Also tests
//! what happens at targets that do not support claims.

mod slow_epochs;

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::support::node::NAME;
use initiator::{RemoteVolume, Settings};
use parking_lot::Mutex;
use scsi::{ClaimParameters, ScsiStatus, Sense};
use target::{Target, TargetServer};
use tokio::sync::watch;
use unit::{
    BlockUnit, ClaimedUnit, Completion, LogicalUnit, Nexus, Saving, Task, TaskManagement,
    UnitIdentity, UnitRecordKind, UnitReply, UnitStore,
};
use volume::{
    Claim, Confirmed, Data, Dirty, Durability, Error, ExclusiveWriter, Geometry, Holding, Lba,
    MemVolume, OrderedFlush, Volume,
};

use slow_epochs::{Epochs, FLUSHED};

/// A store for the records of a unit that keeps them in memory.
#[derive(Default)]
struct Kept(Mutex<HashMap<UnitRecordKind, Vec<u8>>>);

impl UnitStore for Kept {
    fn load(&self, record: UnitRecordKind) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().get(&record).cloned())
    }

    fn save(&self, record: UnitRecordKind, bytes: Vec<u8>) -> Saving<'_> {
        self.0.lock().insert(record, bytes);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A unit that supports persistent reservations but no claims, like the units of other vendors.
struct Foreign(BlockUnit);

impl LogicalUnit for Foreign {
    fn execute(&self, task: Task) -> UnitReply<'_> {
        if matches!(task.cdb.first(), Some(0xc0 | 0xc1)) {
            let unknown = Completion::check_condition(Sense::INVALID_COMMAND_OPERATION_CODE);
            return UnitReply::done(unknown);
        }
        self.0.execute(task)
    }

    fn admit(
        &self,
        nexus: &Nexus,
        cdb: &scsi::Cdb,
        length: u32,
    ) -> Result<Option<scsi::AdmittedCommand>, Completion> {
        self.0.admit(nexus, cdb, length)
    }

    fn task_management(&self, nexus: &Nexus, function: TaskManagement) {
        self.0.task_management(nexus, function);
    }

    fn nexus_opened(&self, nexus: &Nexus) {
        self.0.nexus_opened(nexus);
    }

    fn nexus_closed(&self, nexus: &Nexus) {
        self.0.nexus_closed(nexus);
    }
}

/// A unit that answers claims with BUSY while `is_busy` is set.
struct Occupied {
    unit: BlockUnit,
    is_busy: AtomicBool,
}

impl LogicalUnit for Occupied {
    fn execute(&self, task: Task) -> UnitReply<'_> {
        let is_claim = task.cdb.first() == Some(&0xc1);
        if is_claim && self.is_busy.load(Ordering::Relaxed) {
            return UnitReply::done(Completion::status(ScsiStatus::Busy));
        }
        self.unit.execute(task)
    }

    fn admit(
        &self,
        nexus: &Nexus,
        cdb: &scsi::Cdb,
        length: u32,
    ) -> Result<Option<scsi::AdmittedCommand>, Completion> {
        self.unit.admit(nexus, cdb, length)
    }

    fn task_management(&self, nexus: &Nexus, function: TaskManagement) {
        self.unit.task_management(nexus, function);
    }

    fn nexus_opened(&self, nexus: &Nexus) {
        self.unit.nexus_opened(nexus);
    }

    fn nexus_closed(&self, nexus: &Nexus) {
        self.unit.nexus_closed(nexus);
    }
}

/// A unit of an older node, which does not support the number of the confirmed write in a claim.
struct Old(BlockUnit);

impl LogicalUnit for Old {
    fn execute(&self, task: Task) -> UnitReply<'_> {
        if task.cdb.first() == Some(&0xc1) {
            let list = task.data_out.clone().into_bytes();
            let wrong = match (task.cdb[1], list[9]) {
                (2, _) => Some(Sense::invalid_field_in_cdb(1)),
                (_, 2) => Some(Sense::invalid_field_in_parameter_list(8)),
                _ => None,
            };
            if let Some(sense) = wrong {
                return UnitReply::done(Completion::check_condition(sense));
            }
        }
        self.0.execute(task)
    }

    fn admit(
        &self,
        nexus: &Nexus,
        cdb: &scsi::Cdb,
        length: u32,
    ) -> Result<Option<scsi::AdmittedCommand>, Completion> {
        self.0.admit(nexus, cdb, length)
    }

    fn task_management(&self, nexus: &Nexus, function: TaskManagement) {
        self.0.task_management(nexus, function);
    }

    fn nexus_opened(&self, nexus: &Nexus) {
        self.0.nexus_opened(nexus);
    }

    fn nexus_closed(&self, nexus: &Nexus) {
        self.0.nexus_closed(nexus);
    }
}

/// A unit that delays its answer to a claim until the test permits an answer to that log generation.
struct Slow {
    unit: BlockUnit,
    /// The generations of all claims so far, in order, and the highest generation that may be answered.
    state: watch::Sender<(Vec<u64>, u64)>,
}

impl Slow {
    fn new() -> Arc<Self> {
        Arc::new(Self { unit: block_unit(), state: watch::Sender::default() })
    }

    async fn until_asked(&self, generations: &[u64]) {
        let mut state = self.state.subscribe();
        let asked = state.wait_for(|(asked, _)| asked == generations);
        let asked = tokio::time::timeout(PATIENCE, asked).await;
        asked.expect("the claims come").expect("it is there");
    }

    fn answer(&self, generation: u64) {
        self.state.send_modify(|(_, answered)| *answered = generation);
    }
}

impl LogicalUnit for Slow {
    fn execute(&self, task: Task) -> UnitReply<'_> {
        if task.cdb.first() != Some(&0xc1) {
            return self.unit.execute(task);
        }
        UnitReply::new(async move {
            let list = task.data_out.clone().into_bytes();
            let generation = ClaimParameters::from_bytes(&list).expect("a claim").generation;
            self.state.send_modify(|(asked, _)| asked.push(generation));
            let mut state = self.state.subscribe();
            let _ = state.wait_for(|(_, answered)| *answered >= generation).await;
            self.unit.execute(task).await
        })
    }

    fn admit(
        &self,
        nexus: &Nexus,
        cdb: &scsi::Cdb,
        length: u32,
    ) -> Result<Option<scsi::AdmittedCommand>, Completion> {
        self.unit.admit(nexus, cdb, length)
    }

    fn task_management(&self, nexus: &Nexus, function: TaskManagement) {
        self.unit.task_management(nexus, function);
    }

    fn nexus_opened(&self, nexus: &Nexus) {
        self.unit.nexus_opened(nexus);
    }

    fn nexus_closed(&self, nexus: &Nexus) {
        self.unit.nexus_closed(nexus);
    }
}

/// Starts a node with a volume whose flushes wait for the test. Returns them with a remote volume that has four
/// connections and has claimed the unit.
async fn claimed_epochs() -> (Arc<Epochs>, TargetServer, Settings, RemoteVolume) {
    let disk = Epochs::new();
    let unit = BlockUnit::open(
        disk.clone(),
        UnitIdentity::new("disk-1"),
        unit::Settings::default(),
        Arc::new(Kept::default()),
    );
    let (server, settings) = serve(Arc::new(unit.expect("nothing was kept"))).await;
    let settings = Settings { connections: 4, ..settings("owner") };
    let volume = RemoteVolume::connect(settings.clone()).await.expect("a session");
    disk.flushes.send_modify(|(_, may_end)| *may_end = 1);
    assert_eq!(volume.claim(claim(1, &[])).await.expect("asked"), Holding::Held);
    while volume.session().connections().len() < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (disk, server, settings, volume)
}

async fn write_volatile(volume: &RemoteVolume, lba: u64) -> Result<(), Error> {
    volume.write(Lba(lba), Data::zeros(512), Durability::Volatile).await
}

fn block_unit() -> BlockUnit {
    let disk = Arc::new(MemVolume::new(Geometry::with_blocks(1024)));
    let settings = unit::Settings::default();
    BlockUnit::open(disk, UnitIdentity::new("disk-1"), settings, Arc::new(Kept::default()))
        .expect("nothing was kept")
}

/// Starts a node with this unit. Also returns a function that makes the settings of an initiator with a given name.
async fn serve(unit: Arc<dyn LogicalUnit>) -> (TargetServer, impl Fn(&str) -> Settings) {
    let mut settings = target::Settings::default();
    settings.offer.default_time2wait = 0;
    let server =
        TargetServer::new(settings, vec![Target::new(NAME, vec![(0, unit)])]).expect("a target");
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let address = server.open_portal(any.into()).await.expect("a port");
    let settings = move |host: &str| {
        let mut settings = Settings::new(address.to_string(), NAME, 0);
        settings.initiator_name = format!("iqn.2026-11.io.forebay.test:{host}");
        settings.isid = Settings::lasting_isid(host);
        settings.back_off = Duration::from_millis(5);
        settings
    };
    (server, settings)
}

fn claim(generation: u64, predecessors: &[u64]) -> Claim {
    Claim {
        owner: format!("host-{generation}"),
        instance: [7; 16],
        generation,
        opening: generation * 10,
        granted: 0,
        predecessors: predecessors.to_vec(),
        writes_back: true,
        is_dirty: Dirty::new(true),
        takes_over: !predecessors.is_empty(),
        shares: false,
        confirmed: Confirmed::default(),
        accept_loss: false,
    }
}

async fn write(volume: &RemoteVolume) -> Result<(), Error> {
    volume.write(Lba(0), Data::zeros(512), Durability::Stable).await
}

#[tokio::test]
async fn a_claim_is_presented_in_every_session_and_lost_to_a_successor() {
    let (_server, settings) = serve(Arc::new(block_unit())).await;
    let first = RemoteVolume::connect(settings("a")).await.expect("a session");
    assert_eq!(first.holding(), Holding::Nothing);
    assert_eq!(first.claim(claim(1, &[])).await.expect("asked"), Holding::Held);
    let raw = RemoteVolume::connect(settings("raw")).await.expect("a session");
    assert!(matches!(write(&raw).await, Err(Error::ReadOnly)));
    // The intruder's login uses the same name and ISID, which ends the first session. The new session of `first`
    // presents the claim before anything else.
    let intruder = RemoteVolume::connect(settings("a")).await.expect("a session");
    assert!(matches!(write(&intruder).await, Err(Error::ReadOnly)));
    intruder.close().await;
    write(&first).await.expect("written in a new session");
    assert!(first.statistics().recovery.reconnects > 0);

    let later = RemoteVolume::connect(settings("b")).await.expect("a session");
    assert_eq!(later.claim(claim(2, &[10])).await.expect("asked"), Holding::Held);
    let fenced = write(&first).await.expect_err("shut out");
    assert!(matches!(&fenced, Error::Fenced(why) if why.contains("host-2")), "{fenced}");
    assert!(matches!(first.holding(), Holding::Refused(_)));
    write(&later).await.expect("written");
    later.release().await.expect("released");
    write(&raw).await.expect("no gateway has the claim");
}

#[tokio::test]
async fn a_refused_initiator_does_not_claim_again() {
    let (_server, settings) = serve(Arc::new(block_unit())).await;
    let owner = RemoteVolume::connect(settings("owner")).await.expect("a session");
    assert_eq!(owner.claim(claim(1, &[])).await.expect("asked"), Holding::Held);
    let late = RemoteVolume::connect(settings("late")).await.expect("a session");
    let other_log = Claim { instance: [8; 16], is_dirty: Dirty::new(false), ..claim(1, &[]) };
    let holding = late.claim(other_log).await.expect("asked");
    assert!(matches!(holding, Holding::Refused(_)), "{holding:?}");

    // The unit would grant the claim of `late` now. The intruder's login uses the name of `late`, which makes `late`
    // reconnect.
    owner.release().await.expect("released");
    let intruder = RemoteVolume::connect(settings("late")).await.expect("a session");
    let error = write(&late).await.expect_err("refused for good");
    assert!(matches!(error, Error::Fenced(_)), "{error}");
    write(&intruder).await.expect("the session continues, and no gateway has a claim");
    assert_eq!(owner.claim(claim(2, &[10])).await.expect("asked"), Holding::Held);
}

#[tokio::test]
async fn a_waiting_claim_is_presented_again_in_the_same_session() {
    let unit = Arc::new(Occupied { unit: block_unit(), is_busy: true.into() });
    let (_server, settings) = serve(unit.clone()).await;
    let settings_a = Settings { busy_time_out: Duration::from_millis(20), ..settings("a") };
    let volume = RemoteVolume::connect(settings_a).await.expect("a session");
    assert_eq!(volume.claim(claim(1, &[])).await.expect("asked"), Holding::Waiting);
    unit.is_busy.store(false, Ordering::Relaxed);
    let granted = async {
        while volume.holding() == Holding::Waiting {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), granted).await.expect("asked again");
    assert_eq!(volume.holding(), Holding::Held);
    assert_eq!(volume.statistics().recovery.reconnects, 0);
    let raw = RemoteVolume::connect(settings("raw")).await.expect("a session");
    assert!(matches!(write(&raw).await, Err(Error::ReadOnly)));
}

/// An answer of the unit is for one certain claim. A gateway that continues without its partner acknowledges writes
/// when its current claim is granted, and a late answer to an earlier claim must not look like that.
#[tokio::test]
async fn a_late_answer_to_a_claim_does_not_count_for_the_next_claim() {
    let unit = Slow::new();
    let (_server, settings) = serve(unit.clone()).await;
    let volume = RemoteVolume::connect(settings("a")).await.expect("a session");
    let mut first = volume.claim(claim(1, &[]));
    tokio::select! {
        _ = &mut first => panic!("it is not answered yet"),
        () = unit.until_asked(&[1]) => {}
    }
    // The request of the second claim replaces the first one at once.
    let mut second = volume.claim(claim(2, &[10]));
    tokio::select! {
        biased;
        _ = &mut second => panic!("it is not answered yet"),
        () = std::future::ready(()) => {}
    }
    unit.answer(1);
    assert_eq!(first.await.expect("asked"), Holding::Waiting, "another claim has replaced it");
    assert_eq!(volume.holding(), Holding::Waiting);
    unit.answer(2);
    assert_eq!(second.await.expect("asked"), Holding::Held);
    assert_eq!(volume.holding(), Holding::Held);
}

#[tokio::test]
async fn a_claim_that_is_made_while_its_predecessor_is_presented_is_presented_too() {
    let unit = Slow::new();
    let (_server, settings) = serve(unit.clone()).await;
    let volume = RemoteVolume::connect(settings("a")).await.expect("a session");
    unit.answer(1);
    assert_eq!(volume.claim(claim(1, &[])).await.expect("asked"), Holding::Held);
    unit.answer(0);
    // The intruder's login uses the same name and ISID, which ends the session. The new session presents the claim
    // before anything else.
    let intruder = RemoteVolume::connect(settings("a")).await.expect("a session");
    unit.until_asked(&[1, 1]).await;
    assert_eq!(volume.claim(claim(2, &[10])).await.expect("asked"), Holding::Waiting);
    unit.answer(1);
    unit.until_asked(&[1, 1, 2]).await;
    assert_eq!(volume.holding(), Holding::Waiting);
    unit.answer(2);
    write(&volume).await.expect("written in the new session");
    assert_eq!(volume.holding(), Holding::Held);
    intruder.close().await;
}

#[tokio::test]
async fn a_target_without_claims_is_written_unless_it_granted_claims_before() {
    let (_server, settings) = serve(Arc::new(Foreign(block_unit()))).await;
    let volume = RemoteVolume::connect(settings("a")).await.expect("a session");
    assert_eq!(volume.claim(claim(1, &[])).await.expect("asked"), Holding::Unsupported);
    write(&volume).await.expect("written");
    let volume = RemoteVolume::connect(settings("b")).await.expect("a session");
    let knows_better = Claim { granted: 1, ..claim(2, &[10]) };
    let holding = volume.claim(knows_better).await.expect("asked");
    assert!(matches!(&holding, Holding::Refused(why) if why.contains("no longer")), "{holding:?}");
}

#[tokio::test]
async fn a_target_without_claims_is_reserved_if_settings_say_so() {
    let (server, settings) = serve(Arc::new(Foreign(block_unit()))).await;
    let reserving = |host: &str| Settings { reserve: true, ..settings(host) };
    let first = RemoteVolume::connect(reserving("a")).await.expect("a session");
    assert_eq!(first.claim(claim(1, &[])).await.expect("asked"), Holding::Reserved);
    write(&first).await.expect("written");
    let raw = RemoteVolume::connect(settings("raw")).await.expect("a session");
    write(&raw).await.expect_err("a reservation conflict");
    // After the intruder has ended the session, the next session of the initiator still has the reservation.
    let intruder = RemoteVolume::connect(settings("a")).await.expect("a session");
    intruder.close().await;
    write(&first).await.expect("written in a new session");

    let later = RemoteVolume::connect(reserving("b")).await.expect("a session");
    assert_eq!(later.claim(claim(2, &[10])).await.expect("asked"), Holding::Reserved);
    write(&later).await.expect("written");
    let fenced = write(&first).await.expect_err("preempted");
    assert!(matches!(fenced, Error::Fenced(_)), "{fenced}");
    let again = RemoteVolume::connect(reserving("c")).await.expect("a session");
    let holding = again.claim(claim(1, &[])).await.expect("asked");
    let Holding::Refused(why) = holding else { panic!("{holding:?}") };
    assert!(why.contains("as generation 2"), "{why}");
    // The reservation also refuses a gateway that has another log.
    let other = RemoteVolume::connect(reserving("d")).await.expect("a session");
    let stranger = Claim { instance: [8; 16], ..claim(5, &[]) };
    let holding = other.claim(stranger).await.expect("asked");
    assert!(matches!(&holding, Holding::Refused(why) if why.contains("reserved")), "{holding:?}");

    later.release().await.expect("released");
    write(&raw).await.expect("no gateway has the claim");
    server.shutdown(Duration::ZERO).await;
}

/// Maximum time that a test waits for a claim, which takes milliseconds over loopback.
const PATIENCE: Duration = Duration::from_secs(20);

async fn until_confirmed(unit: &BlockUnit, number: u64) {
    let confirmed = async {
        while unit.claim_report().is_none_or(|report| report.confirmed < number) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, confirmed).await.expect("the unit receives the number");
}

/// The initiator sends the confirmed number to the unit by itself, without a command of a host. The unit then refuses
/// an older copy of the log.
#[tokio::test]
async fn the_unit_receives_the_confirmed_number_and_refuses_an_older_copy_of_the_log() {
    let unit = Arc::new(block_unit());
    let (_server, settings) = serve(unit.clone()).await;
    let owner = RemoteVolume::connect(settings("a")).await.expect("a session");
    let confirmed = Confirmed::new(5);
    let first = Claim { confirmed: confirmed.clone(), ..claim(1, &[]) };
    assert_eq!(owner.claim(first).await.expect("asked"), Holding::Held);
    until_confirmed(&unit, 5).await;
    confirmed.raise(70);
    until_confirmed(&unit, 70).await;
    let copy = Claim { confirmed: Confirmed::new(69), ..claim(2, &[10]) };
    let copied = RemoteVolume::connect(settings("b")).await.expect("a session");
    let holding = copied.claim(copy.clone()).await.expect("asked");
    let Holding::Refused(why) = holding else { panic!("{holding:?}") };
    assert!(why.contains(Claim::OLDER_LOG) && why.contains("at write 69"), "{why}");
    assert!(why.contains("confirmation of write 70"), "{why}");
    write(&owner).await.expect("it is not shut out");
    let accepts = Claim { accept_loss: true, ..copy };
    let copied = RemoteVolume::connect(settings("c")).await.expect("a session");
    assert_eq!(copied.claim(accepts).await.expect("asked"), Holding::Held);
    assert_eq!(unit.claim_report().expect("a claim").confirmed, 69);
}

#[tokio::test]
async fn an_older_node_is_claimed_without_a_confirmed_number() {
    let (_server, settings) = serve(Arc::new(Old(block_unit()))).await;
    let owner = RemoteVolume::connect(settings("a")).await.expect("a session");
    let confirmed = Confirmed::new(5);
    let first = Claim { confirmed: confirmed.clone(), ..claim(1, &[]) };
    assert_eq!(owner.claim(first).await.expect("asked"), Holding::Held);
    confirmed.raise(70);
    // The next session presents the claim without a confirmed number as well.
    let intruder = RemoteVolume::connect(settings("a")).await.expect("a session");
    intruder.close().await;
    write(&owner).await.expect("written in a new session");
    assert_eq!(owner.holding(), Holding::Held);
}

#[tokio::test]
async fn writes_queued_behind_a_flush_are_performed_after_it() {
    let (disk, _server, _, volume) = claimed_epochs().await;
    write_volatile(&volume, 1).await.expect("written");
    disk.came.lock().clear();
    let (begun, is_begun) = tokio::sync::oneshot::channel();
    let flush = volume.flush_ahead(Box::new(|| _ = begun.send(())));
    let writes = async {
        is_begun.await.expect("writes may follow");
        let writes =
            futures_util::future::join_all((10..74).map(|lba| write_volatile(&volume, lba)));
        let hurry = async {
            disk.until_flushes(2).await;
            // Give all writes the time to arrive at the unit, over all connections.
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert_eq!(*disk.came.lock(), [0_u64; 0], "none is done before the end of the flush");
            disk.let_go();
        };
        let (written, ()) = tokio::join!(writes, hurry);
        written.into_iter().for_each(|written| written.expect("written"));
    };
    let (flushed, ()) = tokio::join!(flush, writes);
    flushed.expect("flushed");
    let came = disk.came.lock().clone();
    assert_eq!((came[0], came.len()), (FLUSHED, 65), "{came:?}");
}

#[tokio::test]
async fn a_flush_that_writes_follow_is_not_sent_again_in_another_session() {
    let (disk, _server, settings, volume) = claimed_epochs().await;
    write_volatile(&volume, 1).await.expect("written");
    let (begun, is_begun) = tokio::sync::oneshot::channel();
    let flush = volume.flush_ahead(Box::new(|| _ = begun.send(())));
    let rest = async {
        is_begun.await.expect("writes may follow");
        let cut = async {
            disk.until_flushes(2).await;
            // The intruder's login uses the name and the ISID of the session, which ends it.
            let intruder = RemoteVolume::connect(settings).await.expect("a session");
            intruder.close().await;
        };
        let (written, ()) = tokio::join!(write_volatile(&volume, 2), cut);
        written.expect("a write is sent again");
    };
    let (flushed, ()) = tokio::join!(flush, rest);
    assert!(matches!(flushed, Err(Error::Device(_))), "{flushed:?}");
    assert!(volume.statistics().recovery.reconnects > 0);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(disk.flushes.borrow().0, 2, "no flush was sent behind the write");
    volume.extensions().roll_back().await.expect("rolled back");
    disk.let_go();
    write_volatile(&volume, 1).await.expect("written once more");
    volume.flush_ahead(Box::new(|| ())).await.expect("flushed");
}

#[tokio::test]
async fn no_write_is_queued_behind_a_flush_without_a_claim_or_without_epochs() {
    let is_followed = async |volume: &RemoteVolume| {
        write_volatile(volume, 1).await.expect("written");
        let (begun, is_begun) = tokio::sync::oneshot::channel();
        volume.flush_ahead(Box::new(|| _ = begun.send(()))).await.expect("flushed");
        is_begun.await.is_ok()
    };
    let (_server, settings) = serve(Arc::new(block_unit())).await;
    let volume = RemoteVolume::connect(settings("a")).await.expect("a session");
    assert_eq!(volume.claim(claim(1, &[])).await.expect("asked"), Holding::Held);
    assert!(!is_followed(&volume).await, "the unit has no epochs");
    let (disk, _server, _, volume) = claimed_epochs().await;
    disk.let_go();
    assert!(is_followed(&volume).await);
    volume.release().await.expect("released");
    assert!(!is_followed(&volume).await, "the claim is not held");
}
