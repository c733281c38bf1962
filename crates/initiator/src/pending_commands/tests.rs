//! Tests the table of pending commands: the order of sending, repetitions, and waiting writes.

use scsi::SenseKey;

use super::*;

type Answered = oneshot::Receiver<Result<PerformedCommand, CommandError>>;

fn table() -> PendingTable {
    PendingTable::new(Lun(0), Duration::from_secs(30), Duration::from_secs(1))
}

fn add(table: &mut PendingTable, opcode: u8, now: Instant) -> Answered {
    let (reply, answer) = oneshot::channel();
    table.add(
        Job::new(Cdb::new(&[opcode]), DataPhase::None, reply, CommandRepetition::Allowed),
        now,
    );
    answer
}

fn ended(
    status: ScsiStatus,
    key: Option<SenseKey>,
) -> Result<InitiatorCommandOutcome, CommandFailure> {
    let sense = key.map(|key| Sense::new(key, 0x29, 0));
    Ok(InitiatorCommandOutcome {
        status,
        sense,
        object_sense: None,
        data_in: DataSegment::new(),
        residual: Residual::None,
        bidirectional_read_residual: Residual::None,
    })
}

#[test]
fn lost_commands_are_sent_again_first_and_in_order() {
    let (mut table, now) = (table(), Instant::now());
    let _answers: Vec<_> = (0..4).map(|opcode| add(&mut table, opcode, now)).collect();
    let sent: Vec<_> = std::iter::from_fn(|| table.next(now, &mut InitiatorStatistics::default()))
        .take(3)
        .collect();
    let mut statistics = InitiatorStatistics::default();
    table.replay(sent, &mut statistics);
    let again: Vec<_> = std::iter::from_fn(|| table.next(now, &mut InitiatorStatistics::default()))
        .map(|r| r.cdb[0])
        .collect();
    assert_eq!(again, [0, 1, 2, 3]);
    assert_eq!(statistics.recovery.replays, 3);
}

#[test]
fn a_command_whose_session_is_lost_too_often_fails() {
    let (mut table, now) = (table(), Instant::now());
    let mut answer = add(&mut table, 0, now);
    let mut statistics = InitiatorStatistics::default();
    for _ in 0..=MOST_REPLAYS {
        assert!(answer.try_recv().is_err());
        let sent = table.next(now, &mut InitiatorStatistics::default()).into_iter().collect();
        table.replay(sent, &mut statistics);
    }
    assert!(matches!(answer.try_recv().unwrap(), Err(CommandError::Unreachable(_))));
    assert_eq!(table.len(), 0);
}

#[test]
fn only_a_command_that_was_never_sent_fails_as_not_performed() {
    let (mut table, now) = (table(), Instant::now());
    let mut sent = add(&mut table, 0, now);
    assert!(table.next(now, &mut InitiatorStatistics::default()).is_some());
    let mut unsent = add(&mut table, 0, now);
    let error = CommandError::Unreachable("the link is down".into());
    table.fail_all(&error, &mut InitiatorStatistics::default());
    assert!(matches!(sent.try_recv().unwrap(), Err(CommandError::Unreachable(_))));
    assert!(matches!(unsent.try_recv().unwrap(), Err(CommandError::Away(_))));
}

/// After a lost connection and a BUSY, the caller must not read that the command was not performed:
/// the target may have performed it before the connection was lost.
#[test]
fn a_command_that_was_sent_twice_is_not_busy() {
    let (mut table, mut now) = (table(), Instant::now());
    let mut statistics = InitiatorStatistics::default();
    let mut answer = add(&mut table, 0, now);
    let lost = table.next(now, &mut InitiatorStatistics::default()).into_iter().collect();
    table.replay(lost, &mut statistics);
    let end = now + Duration::from_secs(600);
    while table.len() > 0 {
        assert!(now < end, "it is asked for ever");
        table.wake(now);
        if let Some(request) = table.next(now, &mut InitiatorStatistics::default()) {
            table.complete(request.tag, ended(ScsiStatus::Busy, None), 1, now, &mut statistics);
        }
        now += BUSY_PAUSE_MAX;
    }
    assert!(matches!(answer.try_recv().unwrap(), Err(CommandError::Unreachable(_))));
}

#[test]
fn a_busy_target_is_asked_again_for_a_bounded_time() {
    let (mut table, mut now) = (table(), Instant::now());
    let mut answer = add(&mut table, 0, now);
    let mut statistics = InitiatorStatistics::default();
    let begun = now;
    while let Some(request) = table.next(now, &mut InitiatorStatistics::default()) {
        table.complete(request.tag, ended(ScsiStatus::Busy, None), 1, now, &mut statistics);
        let Some(due) = table.deadline() else { break };
        assert!(table.next(now, &mut InitiatorStatistics::default()).is_none());
        now = due;
        table.wake(now);
    }
    assert!(matches!(answer.try_recv().unwrap(), Err(CommandError::Busy)));
    assert!((Duration::from_secs(1)..Duration::from_secs(2)).contains(&(now - begun)));
    assert!(statistics.calls.retries < 20, "{}", statistics.calls.retries);
}

#[test]
fn a_unit_attention_is_reported_and_its_command_repeated_a_bounded_number_of_times() {
    let (mut table, now) = (table(), Instant::now());
    let mut answer = add(&mut table, 0, now);
    let mut statistics = InitiatorStatistics::default();
    let mut news = 0;
    while let Some(request) = table.next(now, &mut InitiatorStatistics::default()) {
        let attention = ended(ScsiStatus::CheckCondition, Some(SenseKey::UnitAttention));
        let told = table.complete(request.tag, attention, 1, now, &mut statistics);
        news += u32::from(told.attention.is_some());
    }
    assert_eq!(news, MOST_UNIT_ATTENTIONS + 1);
    assert!(matches!(answer.try_recv().unwrap(), Err(CommandError::Check(_))));
}

#[test]
fn a_command_that_met_a_deferred_error_was_not_performed() {
    for key in [SenseKey::NoSense, SenseKey::RecoveredError, SenseKey::MediumError] {
        let (mut table, now) = (table(), Instant::now());
        let mut answer = add(&mut table, 0, now);
        let mut statistics = InitiatorStatistics::default();
        let deferred = Sense { deferred: true, ..Sense::new(key, 0x0c, 0) };
        let mut news = 0;
        while let Some(request) = table.next(now, &mut InitiatorStatistics::default()) {
            assert!(answer.try_recv().is_err(), "answered, and not performed");
            let mut outcome = ended(ScsiStatus::CheckCondition, Some(key)).unwrap();
            outcome.sense = Some(deferred);
            let told = table.complete(request.tag, Ok(outcome), 1, now, &mut statistics);
            assert_eq!(told.attention, Some(deferred));
            news += 1;
        }
        assert_eq!(news, MOST_UNIT_ATTENTIONS + 1);
        assert!(matches!(answer.try_recv().unwrap(), Err(CommandError::Check(_))));
    }
}

#[test]
fn a_recovered_error_is_no_error() {
    let (mut table, now) = (table(), Instant::now());
    let mut answer = add(&mut table, 0, now);
    let mut statistics = InitiatorStatistics::default();
    let tag = table.next(now, &mut InitiatorStatistics::default()).unwrap().tag;
    let recovered = ended(ScsiStatus::CheckCondition, Some(SenseKey::RecoveredError));
    table.complete(tag, recovered, 7, now, &mut statistics);
    assert_eq!(answer.try_recv().unwrap().unwrap().generation, 7);
}

#[test]
fn no_write_overtakes_an_abandoned_write() {
    let (mut table, now) = (table(), Instant::now());
    let add_write = |table: &mut PendingTable| {
        let (reply, answer) = oneshot::channel();
        let transfer = DataPhase::Out(bytes::Bytes::from_static(b"x"));
        table.add(Job::new(Cdb::new(&[0x2a]), transfer, reply, CommandRepetition::Allowed), now);
        answer
    };
    let abandoned = add_write(&mut table);
    let tag = table.next(now, &mut InitiatorStatistics::default()).unwrap().tag;
    drop(abandoned);
    let _newer = add_write(&mut table);
    assert!(table.next(now, &mut InitiatorStatistics::default()).is_none());
    assert_eq!(table.in_the_way(), [tag]);
    let mut statistics = InitiatorStatistics::default();
    table.complete(tag, ended(ScsiStatus::Good, None), 1, now, &mut statistics);
    assert!(table.next(now, &mut InitiatorStatistics::default()).is_some());
}

fn write(table: &mut PendingTable, lba: u8, blocks: u8, now: Instant) -> Answered {
    let (reply, answer) = oneshot::channel();
    let transfer = DataPhase::Out(bytes::Bytes::from_static(b"x"));
    let cdb = Cdb::new(&[0x2a, 0, 0, 0, 0, lba, 0, 0, blocks, 0]);
    table.add(Job::new(cdb, transfer, reply, CommandRepetition::Allowed), now);
    answer
}

#[test]
fn only_a_write_to_the_same_blocks_waits_for_an_earlier_write() {
    let (mut table, now) = (table(), Instant::now());
    let _answers: Vec<_> = [(0, 8), (7, 2), (8, 1), (20, 1)]
        .map(|(lba, blocks)| write(&mut table, lba, blocks, now))
        .into();
    let _read = add(&mut table, 0x28, now);
    let mut statistics = InitiatorStatistics::default();
    let sent = |table: &mut PendingTable| -> Vec<u64> {
        std::iter::from_fn(|| table.next(now, &mut InitiatorStatistics::default()))
            .map(|request| request.tag)
            .collect()
    };
    // Write 2 waits for write 1, which waits for write 0.
    assert_eq!(sent(&mut table), [0, 3, 4]);
    // Write 0 is answered with BUSY. It will be sent again, so the other writes still wait for it.
    table.complete(0, ended(ScsiStatus::Busy, None), 1, now, &mut statistics);
    assert!(sent(&mut table).is_empty());
    table.wake(now + BUSY_PAUSE_MAX);
    assert_eq!(sent(&mut table), [0]);
    table.complete(0, ended(ScsiStatus::Good, None), 1, now, &mut statistics);
    assert_eq!(sent(&mut table), [1]);
    table.complete(1, ended(ScsiStatus::Good, None), 1, now, &mut statistics);
    assert_eq!(sent(&mut table), [2]);
}

#[test]
fn a_write_that_is_sent_again_overwrites_no_later_write() {
    let (mut table, now) = (table(), Instant::now());
    let _answers = [write(&mut table, 5, 1, now), write(&mut table, 5, 1, now)];
    let mut statistics = InitiatorStatistics::default();
    for _ in 0..3 {
        let request = table.next(now, &mut InitiatorStatistics::default()).unwrap();
        assert_eq!(
            (request.tag, table.next(now, &mut InitiatorStatistics::default()).is_none()),
            (0, true)
        );
        table.take_back(vec![request], &mut statistics);
    }
    assert_eq!(table.next(now, &mut InitiatorStatistics::default()).unwrap().tag, 0);
    table.complete(0, ended(ScsiStatus::Good, None), 1, now, &mut statistics);
    assert_eq!(table.next(now, &mut InitiatorStatistics::default()).unwrap().tag, 1);
}

/// Adds a command that may be sent only once, in generation 1.
fn add_once(table: &mut PendingTable, now: Instant) -> Answered {
    let (reply, answer) = oneshot::channel();
    let (cdb, transfer) = (Cdb::new(&[0x35]), DataPhase::None);
    table.add(Job::new(cdb, transfer, reply, CommandRepetition::OnlyIn(1)), now);
    answer
}

fn is_not_repeated(mut answer: Answered) -> bool {
    matches!(answer.try_recv(), Ok(Err(CommandError::NotRepeated(_))))
}

#[test]
fn a_command_that_may_be_sent_once_is_not_sent_again_whatever_ends_it() {
    let endings = [
        (ScsiStatus::Busy, None),
        (ScsiStatus::TaskSetFull, None),
        (ScsiStatus::TaskAborted, None),
        (ScsiStatus::CheckCondition, Some(SenseKey::UnitAttention)),
        (ScsiStatus::CheckCondition, Some(SenseKey::AbortedCommand)),
        (ScsiStatus::CheckCondition, Some(SenseKey::NotReady)),
    ];
    let now = Instant::now();
    for (status, key) in endings {
        let (mut table, mut statistics) = (table(), InitiatorStatistics::default());
        (table.generation, table.has_choice) = (1, true);
        let answer = add_once(&mut table, now);
        let request = table.next(now, &mut statistics).expect("it is sent once");
        table.complete(request.tag, ended(status, key), 1, now, &mut statistics);
        table.wake(now + BUSY_PAUSE_MAX);
        assert!(table.next(now, &mut statistics).is_none(), "{status:?} {key:?}");
        assert!(is_not_repeated(answer), "{status:?} {key:?}");
    }
}

/// At error recovery level 2, a session returns the commands that it could not reassign, and
/// continues.
#[test]
fn a_command_that_may_be_sent_once_is_not_sent_again_in_its_own_session() {
    let (mut table, now) = (table(), Instant::now());
    let mut statistics = InitiatorStatistics::default();
    table.generation = 1;
    let answer = add_once(&mut table, now);
    let request = table.next(now, &mut statistics).expect("it is sent once");
    table.take_back(vec![request], &mut statistics);
    assert!(table.next(now, &mut statistics).is_none());
    assert!(is_not_repeated(answer));
}

#[test]
fn a_command_that_may_be_sent_once_does_not_outlive_its_session() {
    let (mut table, now) = (table(), Instant::now());
    let mut statistics = InitiatorStatistics::default();
    table.generation = 1;
    let sent = add_once(&mut table, now);
    let write = write(&mut table, 5, 1, now);
    let unanswered: Vec<_> =
        std::iter::from_fn(|| table.next(now, &mut InitiatorStatistics::default())).collect();
    assert_eq!(unanswered.len(), 2);
    // Add a command that is still in the queue when the session is lost.
    let waiting = add_once(&mut table, now);
    table.replay(unanswered, &mut statistics);
    table.generation = 2;
    let again: Vec<_> = std::iter::from_fn(|| table.next(now, &mut statistics)).collect();
    assert_eq!(again.iter().map(|request| request.cdb[0]).collect::<Vec<_>>(), [0x2a]);
    assert!(is_not_repeated(sent) && is_not_repeated(waiting));
    drop(write);
}

#[test]
fn an_abandoned_command_is_not_sent() {
    let (mut table, now) = (table(), Instant::now());
    drop(add(&mut table, 0, now));
    assert!(table.next(now, &mut InitiatorStatistics::default()).is_none());
    assert_eq!(table.len(), 0);
}

/// Builds commands whose operation code is the number of commands built so far.
struct Counting {
    made: std::sync::atomic::AtomicU8,
    changes: Option<ChangedObject>,
}

impl Counting {
    fn new(changes: Option<ChangedObject>) -> Arc<Self> {
        Arc::new(Self { made: Default::default(), changes })
    }
}

impl CommandSource for Counting {
    fn make(&self) -> (Cdb, DataPhase) {
        let made = self.made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        (Cdb::new(&[made]), DataPhase::None)
    }

    fn changes(&self) -> Option<ChangedObject> {
        self.changes
    }
}

fn add_made(
    table: &mut PendingTable,
    source: &Arc<Counting>,
    repetition: CommandRepetition,
    now: Instant,
) -> Answered {
    let (reply, answer) = oneshot::channel();
    let (cdb, transfer) = source.make();
    let job = Job::new(cdb, transfer, reply, repetition);
    table.add(Job { source: Some(source.clone()), ..job }, now);
    answer
}

#[test]
fn a_signed_command_is_signed_again_before_it_is_sent_again() {
    let (mut table, now) = (table(), Instant::now());
    let source = Counting::new(None);
    let _answer = add_made(&mut table, &source, CommandRepetition::Allowed, now);
    let mut statistics = InitiatorStatistics::default();
    let first = table.next(now, &mut statistics).unwrap();
    assert_eq!(first.cdb[0], 0, "the caller has just signed it");
    table.replay(vec![first], &mut statistics);
    let second = table.next(now, &mut statistics).unwrap();
    assert_eq!(second.cdb[0], 1);
    let busy = ended(ScsiStatus::Busy, None);
    table.complete(second.tag, busy, 0, now, &mut statistics);
    table.wake(now + BUSY_PAUSE);
    assert_eq!(table.next(now, &mut statistics).unwrap().cdb[0], 2);
}

#[test]
fn a_signature_that_waited_long_or_is_for_another_session_is_made_again() {
    let (mut table, now) = (table(), Instant::now());
    let source = Counting::new(None);
    let mut statistics = InitiatorStatistics::default();
    let _answer = add_made(&mut table, &source, CommandRepetition::Allowed, now);
    let later = now + MOST_AGE + Duration::from_millis(1);
    assert_eq!(table.next(later, &mut statistics).unwrap().cdb[0], 1);
    let _answer = add_made(&mut table, &source, CommandRepetition::Allowed, now);
    table.generation += 1;
    assert_eq!(table.next(now, &mut statistics).unwrap().cdb[0], 3);
}

#[test]
fn a_command_that_must_not_be_repeated_is_returned_after_a_lost_session() {
    let (mut table, now) = (table(), Instant::now());
    let source = Counting::new(None);
    let mut answer = add_made(&mut table, &source, CommandRepetition::Forbidden, now);
    let mut statistics = InitiatorStatistics::default();
    // A unit attention says that the command was not begun.
    let sent = table.next(now, &mut statistics).unwrap();
    let attention = ended(ScsiStatus::CheckCondition, Some(SenseKey::UnitAttention));
    table.complete(sent.tag, attention, 0, now, &mut statistics);
    let sent = table.next(now, &mut statistics).unwrap();
    assert!(answer.try_recv().is_err());
    table.replay(vec![sent], &mut statistics);
    assert!(table.next(now, &mut statistics).is_none());
    assert!(matches!(answer.try_recv().unwrap(), Err(CommandError::NotRepeated(_))));
    // Abort the command at the target, which may have begun to execute it.
    let mut answer = add_made(&mut table, &source, CommandRepetition::Forbidden, now);
    let sent = table.next(now, &mut statistics).unwrap();
    let aborted = ended(ScsiStatus::CheckCondition, Some(SenseKey::AbortedCommand));
    table.complete(sent.tag, aborted, 0, now, &mut statistics);
    assert!(matches!(answer.try_recv().unwrap(), Err(CommandError::NotRepeated(_))));
}

#[test]
fn the_caller_of_a_made_command_gets_every_status() {
    let (mut table, now) = (table(), Instant::now());
    let source = Counting::new(None);
    let mut answer = add_made(&mut table, &source, CommandRepetition::Allowed, now);
    let mut statistics = InitiatorStatistics::default();
    let sent = table.next(now, &mut statistics).unwrap();
    let refused = ended(ScsiStatus::CheckCondition, Some(SenseKey::IllegalRequest));
    table.complete(sent.tag, refused, 0, now, &mut statistics);
    let performed = answer.try_recv().unwrap().unwrap();
    assert_eq!(performed.status, ScsiStatus::CheckCondition);
    assert_eq!(performed.sense.unwrap().key, SenseKey::IllegalRequest);
}

#[test]
fn the_sense_of_a_recovered_error_reaches_the_caller() {
    let (mut table, now) = (table(), Instant::now());
    let mut answer = add(&mut table, 0x28, now);
    let mut statistics = InitiatorStatistics::default();
    let sent = table.next(now, &mut statistics).unwrap();
    let recovered = ended(ScsiStatus::CheckCondition, Some(SenseKey::RecoveredError));
    table.complete(sent.tag, recovered, 0, now, &mut statistics);
    let performed = answer.try_recv().unwrap().unwrap();
    assert_eq!(performed.sense.unwrap().key, SenseKey::RecoveredError);
}

#[test]
fn writes_to_two_objects_do_not_wait_for_each_other() {
    let (mut table, now) = (table(), Instant::now());
    let mut statistics = InitiatorStatistics::default();
    let write = |object, first, end| Counting::new(Some(ChangedObject { object, first, end }));
    let allowed = CommandRepetition::Allowed;
    let sources =
        [write((1, 1), 0, 8), write((1, 2), 0, 8), write((1, 1), 8, 9), write((1, 1), 7, 9)];
    let _answers = sources.each_ref().map(|source| add_made(&mut table, source, allowed, now));
    let sent: Vec<_> = std::iter::from_fn(|| table.next(now, &mut statistics)).collect();
    assert_eq!(sent.iter().map(|sent| sent.tag).collect::<Vec<_>>(), [0, 1, 2]);
    for tag in [0, 2] {
        let done = ended(ScsiStatus::Good, None);
        table.complete(tag, done, 0, now, &mut statistics);
    }
    assert_eq!(table.next(now, &mut statistics).unwrap().tag, 3);
}
