//! Tests the memory of writes that wait for earlier commands or for their own data: the limit of
//! this memory, and the end of sessions that use it without progress.

use std::time::Duration;

use iscsi::{
    Bhs, DataSegment, Itt, Pdu, Ttt,
    codec::PduFrame,
    pdu::{DataOut, Numbers},
    session::target::{Settings, TargetCommandOutcome, TargetEvent, TargetSessionError},
};
use scsi::ScsiStatus;

use crate::rig::{Rig, burst, data_out, frame, pattern, r2ts, response};

const KEYS: &str = "InitialR2T=No\nImmediateData=Yes\nMaxOutstandingR2T=1\nFirstBurstLength=65536\n\
     MaxBurstLength=65536\n";
/// The FirstBurstLength of the session, in bytes.
const FIRST: usize = 65_536;
/// The least memory in bytes that a waiting Data-Out uses.
const KEPT: usize = size_of::<(DataOut, Bhs)>();

fn good() -> TargetCommandOutcome {
    TargetCommandOutcome::good(DataSegment::new())
}

fn limited(bytes: usize) -> Rig {
    let mut rig = Rig::new(KEYS);
    rig.session.limit_waiting(bytes);
    rig
}

fn numbers(pdus: &[Pdu]) -> Numbers {
    match pdus {
        [Pdu::NopIn(nop)] => nop.numbers,
        pdus => response(pdus).numbers,
    }
}

#[test]
fn data_behind_a_command_gap_is_bounded_and_writes_without_room_end_in_busy() {
    let mut rig = limited(4 * FIRST);
    let missing = rig.read(1, 0);
    for itt in 2..=127 {
        let write = rig.write(itt, FIRST as u32, FIRST, true);
        assert!(rig.send(Pdu::ScsiCommand(write)).is_empty());
        assert!(rig.session.waiting_bytes() <= 4 * FIRST);
    }
    rig.no_event();
    // The waiting writes use all memory, so the target does not open the window further.
    let before = rig.login_response.numbers;
    let ping = rig.ping(1000, 0);
    assert_eq!(numbers(&rig.send(Pdu::NopOut(ping))).max_cmd_sn, before.max_cmd_sn);
    // The missing command is accepted although no memory is left. All later commands then have
    // their turn.
    let answers = rig.send(Pdu::ScsiCommand(missing));
    assert_eq!(rig.command().itt, Itt(1));
    for itt in 2..=5 {
        let command = rig.command();
        assert_eq!(
            (command.itt, command.data_out.concat()),
            (Itt(itt), pattern(0, FIRST).to_vec())
        );
    }
    rig.no_event();
    assert_eq!(answers.len(), 122);
    for (itt, answer) in (6..).zip(&answers) {
        let Pdu::ScsiResponse(busy) = answer else { panic!("{answer:?}") };
        assert_eq!((busy.itt, busy.status), (Itt(itt), ScsiStatus::Busy as u8));
    }
    assert_eq!(rig.session.waiting_bytes(), 0);
    // The responses to earlier commands have opened the command window again.
    let opened = numbers(&rig.complete(1, good()));
    assert_eq!(opened.exp_cmd_sn, before.exp_cmd_sn.add(127));
    assert!(before.max_cmd_sn.is_before(opened.max_cmd_sn));
}

#[test]
fn unsolicited_data_behind_a_command_gap_is_bounded() {
    let room = FIRST + 1024;
    let mut rig = limited(room);
    let missing = rig.read(1, 0);
    for itt in 2..=9 {
        let write = rig.write(itt, FIRST as u32, 0, false);
        assert!(rig.send(Pdu::ScsiCommand(write)).is_empty());
        for (data_sn, half) in [(0, false), (1, true)] {
            let offset = FIRST / 2 * usize::from(half);
            let data = data_out(itt, Ttt::NONE, data_sn, offset, FIRST / 2, half);
            assert!(rig.send(data).is_empty());
            assert!(rig.session.waiting_bytes() <= room);
        }
    }
    // Write 10 waits before any of its data has arrived, so it uses no memory.
    let write = rig.write(10, FIRST as u32, 0, false);
    rig.send(Pdu::ScsiCommand(write));
    let answers = rig.send(Pdu::ScsiCommand(missing));
    assert_eq!((rig.command().itt, rig.command().itt), (Itt(1), Itt(2)));
    assert_eq!(answers.len(), 7, "3 to 9 get BUSY");
    assert!(rig.send(data_out(10, Ttt::NONE, 0, 0, FIRST, true)).is_empty());
    assert_eq!(rig.command().data_out.concat(), pattern(0, FIRST).to_vec());
    assert_eq!(rig.session.waiting_bytes(), 0);
}

/// A regression test. 126 writes with 5,461 empty Data-Out each used 80 MB of memory, but nothing
/// was charged for them.
#[test]
fn empty_data_behind_a_command_gap_is_bounded() {
    for length in [0, 1] {
        let mut rig = limited(FIRST);
        let missing = rig.read(1, 0);
        let write = rig.write(2, FIRST as u32, 0, false);
        rig.send(Pdu::ScsiCommand(write));
        let mut before = 0;
        let mut kept = 0;
        for data_sn in 0..1000 {
            let offset = length * data_sn as usize;
            rig.send(data_out(2, Ttt::NONE, data_sn, offset, length, false));
            let held = rig.session.waiting_bytes();
            assert!(held <= FIRST);
            if held > before {
                assert!(held - before >= KEPT, "a Data-Out counts for what it takes");
                kept += 1;
            }
            before = held;
        }
        assert!(kept < FIRST / KEPT, "{kept}");
        assert_eq!(before, 0, "what has no room is dropped");
        rig.send(Pdu::ScsiCommand(missing));
        rig.command();
        let answers = rig.send(data_out(2, Ttt::NONE, 1000, 0, 0, true));
        assert_eq!(response(&answers).status, ScsiStatus::Busy as u8);
    }
}

#[test]
fn a_first_burst_in_small_pieces_is_held_completely() {
    let mut rig = Rig::new(KEYS);
    let missing = rig.read(1, 0);
    let write = rig.write(2, FIRST as u32, 0, false);
    rig.send(Pdu::ScsiCommand(write));
    let pieces = FIRST.div_ceil(600);
    for at in 0..pieces {
        let length = (FIRST - 600 * at).min(600);
        let pdu = data_out(2, Ttt::NONE, at as u32, 600 * at, length, at + 1 == pieces);
        rig.send(pdu);
    }
    rig.send(Pdu::ScsiCommand(missing));
    rig.command();
    assert_eq!(rig.command().data_out.concat(), pattern(0, FIRST).to_vec());
}

#[test]
fn unsolicited_data_that_never_ends_is_bounded() {
    let mut rig = limited(2 * FIRST);
    for itt in 1..=100 {
        let write = rig.write(itt, FIRST as u32, 0, false);
        rig.send(Pdu::ScsiCommand(write));
        rig.send(data_out(itt, Ttt::NONE, 0, 0, FIRST - 512, false));
        assert!(rig.session.waiting_bytes() <= 2 * FIRST);
    }
    rig.no_event();
    // Each write gets its status when its data has ended. Only the first two had memory, so only
    // they are executed.
    for itt in 1..=100 {
        let answers = rig.send(data_out(itt, Ttt::NONE, 1, FIRST - 512, 512, true));
        if itt <= 2 {
            assert_eq!(rig.command().data_out.concat(), pattern(0, FIRST).to_vec());
        } else {
            assert_eq!(response(&answers).status, ScsiStatus::Busy as u8, "write {itt}");
        }
    }
    assert_eq!(rig.session.waiting_bytes(), 0);
}

#[test]
fn data_is_requested_when_there_is_room_for_all_of_it() {
    let mut rig = limited(3 * FIRST);
    for itt in 1..=3 {
        let write = rig.write(itt, 2 * FIRST as u32, 0, true);
        rig.send(Pdu::ScsiCommand(write));
    }
    let first = r2ts(&rig.admit(1));
    assert_eq!(first.len(), 1);
    assert!(rig.admit(2).is_empty() && rig.admit(3).is_empty());
    assert_eq!(rig.session.lacking_bytes(), FIRST);
    // A higher limit lets write 2 continue.
    rig.session.limit_waiting(4 * FIRST);
    assert_eq!(r2ts(&rig.output())[0].itt, Itt(2));
    assert_eq!(rig.session.lacking_bytes(), 2 * FIRST);
    // The memory that write 1 releases lets write 3 continue.
    let mut queue = first;
    while let Some(r2t) = queue.pop() {
        for pdu in burst(&r2t, FIRST) {
            queue.extend(r2ts(&rig.send(pdu)));
        }
    }
    assert_eq!(rig.command().data_out.concat().len(), 2 * FIRST);
    let answers = rig.complete(1, good());
    let is_third = |pdu: &Pdu| matches!(pdu, Pdu::ReadyToTransfer(r2t) if r2t.itt == Itt(3));
    assert!(answers.iter().any(is_third), "{answers:?}");
    assert_eq!(rig.session.waiting_bytes(), 4 * FIRST);
}

#[test]
fn a_write_that_is_delivered_at_once_needs_no_room() {
    let mut rig = limited(0);
    let write = rig.write(1, FIRST as u32, FIRST, true);
    assert_eq!(rig.deliver(write).data_out.concat().len(), FIRST);
    let numbers = numbers(&rig.complete(1, good()));
    assert_eq!(numbers.max_cmd_sn, numbers.exp_cmd_sn.add(127), "the window is open");
}

#[test]
fn the_window_stays_closed_while_writes_use_the_whole_share_of_memory() {
    let mut rig = limited(2 * FIRST);
    for itt in 1..=2 {
        let write = rig.write(itt, FIRST as u32, 0, false);
        rig.send(Pdu::ScsiCommand(write));
        rig.send(data_out(itt, Ttt::NONE, 0, 0, FIRST - 512, false));
    }
    let max_cmd_sn = |rig: &mut Rig, itt| {
        let read = rig.read(itt, 0);
        rig.deliver(read);
        numbers(&rig.complete(itt, good())).max_cmd_sn
    };
    let before = rig.login_response.numbers.max_cmd_sn;
    assert_eq!(max_cmd_sn(&mut rig, 3), before);
    for itt in 1..=2 {
        rig.send(data_out(itt, Ttt::NONE, 1, FIRST - 512, 512, true));
        rig.command();
        rig.complete(itt, good());
    }
    assert!(before.is_before(max_cmd_sn(&mut rig, 4)));
}

#[test]
fn a_session_that_holds_memory_without_progress_ends() {
    let hole = |rig: &mut Rig| {
        rig.next_cmd_sn();
        rig.write(2, 4096, 4096, true)
    };
    let open = |rig: &mut Rig| rig.write(2, 8192, 4096, false);
    let cases: [&dyn Fn(&mut Rig) -> iscsi::pdu::ScsiCommand; 2] = [&hole, &open];
    for case in cases {
        let mut rig = Rig::new(KEYS);
        let command = case(&mut rig);
        rig.send(Pdu::ScsiCommand(command));
        // The initiator sends pings, but the write makes no progress.
        for second in 1..15 {
            assert_eq!(rig.pass(Duration::from_secs(1)), Ok(()), "after {second} s");
            let ping = rig.ping(1000 + second, 0);
            rig.send(Pdu::NopOut(ping));
        }
        let ended = rig.pass(Duration::from_secs(1));
        assert_eq!(ended, Err(TargetSessionError::Stalled(4096)));
        assert!(ended.unwrap_err().ends_session());
    }
}

#[test]
fn a_slow_session_that_makes_progress_stays() {
    let mut rig = Rig::new(KEYS);
    let write = rig.write(1, 4 * FIRST as u32, 0, true);
    rig.send(Pdu::ScsiCommand(write));
    let mut queue = r2ts(&rig.admit(1));
    while let Some(r2t) = queue.pop() {
        assert_eq!(rig.pass(Duration::from_secs(14)), Ok(()));
        for pdu in burst(&r2t, 8192) {
            queue.extend(r2ts(&rig.send(pdu)));
        }
    }
    assert_eq!(rig.command().data_out.concat().len(), 4 * FIRST);
    // A gap in the CmdSNs is filled in time, and then a second gap opens behind it.
    let (missing, next) = (rig.read(2, 0), rig.write(3, 512, 512, true));
    let (another, last) = (rig.read(4, 0), rig.write(5, 512, 512, true));
    rig.send(Pdu::ScsiCommand(next));
    rig.send(Pdu::ScsiCommand(last));
    rig.pass(Duration::from_secs(14)).unwrap();
    rig.send(Pdu::ScsiCommand(missing));
    rig.pass(Duration::from_secs(14)).unwrap();
    rig.send(Pdu::ScsiCommand(another));
    assert_eq!(rig.session.waiting_bytes(), 0);
    assert_eq!(rig.pass(Duration::from_secs(60)), Ok(()), "it holds nothing");
}

/// A regression test. A write that waited for memory kept its first burst and was never answered
/// while other sessions used up the memory.
#[test]
fn a_write_that_waits_for_room_ends_in_busy_and_frees_its_first_burst() {
    let mut rig = limited(3 * FIRST);
    for itt in 1..=3 {
        let write = rig.write(itt, 2 * FIRST as u32, 512, true);
        rig.send(Pdu::ScsiCommand(write));
    }
    assert_eq!(r2ts(&rig.admit(1)).len(), 1);
    assert!(rig.admit(2).is_empty());
    rig.pass(Duration::from_secs(1)).unwrap();
    assert!(rig.admit(3).is_empty());
    rig.pass(Duration::from_millis(3999)).unwrap();
    assert!(rig.output().is_empty());
    let before = rig.session.waiting_bytes();
    rig.pass(Duration::from_millis(1)).unwrap();
    let answers = rig.output();
    assert_eq!(
        (response(&answers).itt, response(&answers).status),
        (Itt(2), ScsiStatus::Busy as u8)
    );
    assert_eq!(rig.session.waiting_bytes(), before - 512);
    rig.no_event();
    rig.pass(Duration::from_secs(1)).unwrap();
    assert_eq!(response(&rig.output()).itt, Itt(3));
    assert_eq!(rig.session.lacking_bytes(), 0);
    // Write 1 keeps its memory, and its transfer continues.
    assert!(rig.session.poll_timeout().is_some_and(|due| due > rig.now));
    assert_eq!(rig.session.waiting_bytes(), 2 * FIRST);
}

#[test]
fn a_write_that_waits_for_others_of_its_connection_does_not_end() {
    let settings = Settings { solicited_bytes: 2 * FIRST as u64, ..Settings::default() };
    let mut rig = Rig::with(KEYS, settings);
    for itt in 1..=2 {
        let write = rig.write(itt, 2 * FIRST as u32, 0, true);
        rig.send(Pdu::ScsiCommand(write));
    }
    let mut queue = r2ts(&rig.admit(1));
    assert!(rig.admit(2).is_empty());
    assert_eq!(rig.session.lacking_bytes(), 0, "room would not let it go on");
    for _ in 0..2 {
        rig.pass(Duration::from_secs(14)).unwrap();
        let r2t = queue.pop().expect("asked for");
        for pdu in burst(&r2t, FIRST) {
            queue.extend(r2ts(&rig.send(pdu)));
        }
    }
    assert_eq!(rig.command().itt, Itt(1));
    // Write 2 still waits for write 1. While other sessions lack memory, it may keep its immediate
    // data for only a minute.
    rig.session.note_contention(true, rig.now);
    rig.pass(Duration::from_secs(59)).unwrap();
    assert!(rig.output().iter().all(|pdu| matches!(pdu, Pdu::NopIn(_))));
    let ping = rig.ping(1000, 0);
    rig.send(Pdu::NopOut(ping));
    rig.pass(Duration::from_secs(1)).unwrap();
    assert_eq!(response(&rig.output()).itt, Itt(2));
}

/// A regression test. 64 KiB in 15 s counted as progress, whatever amount of memory a write held.
/// Four sessions with one write of 32 MiB each could occupy all memory for two hours.
#[test]
fn write_data_must_arrive_within_a_minute_while_other_sessions_lack_room() {
    let trickle = |rig: &mut Rig, is_contended: bool| {
        let write = rig.write(1, 64 * FIRST as u32, 0, true);
        rig.send(Pdu::ScsiCommand(write));
        let mut queue = r2ts(&rig.admit(1));
        let begun = rig.now;
        while rig.now < begun + Duration::from_secs(300) {
            rig.session.note_contention(is_contended, rig.now);
            rig.pass(Duration::from_secs(10))?;
            let r2t = queue.pop().expect("asked for");
            for pdu in burst(&r2t, FIRST) {
                queue.extend(r2ts(&rig.send(pdu)));
            }
        }
        Ok(())
    };
    assert_eq!(trickle(&mut Rig::new(KEYS), false), Ok(()));
    let mut rig = Rig::new(KEYS);
    let begun = rig.now;
    assert_eq!(trickle(&mut rig, true), Err(TargetSessionError::Slow(64 * FIRST)));
    assert!(rig.now - begun <= Duration::from_secs(75), "{:?}", rig.now - begun);

    // Fill each gap in CmdSN late, so that the next one remains. This progress does not save the
    // writes that wait for the gaps.
    let mut rig = Rig::new(KEYS);
    let missing: Vec<_> = (0..20)
        .map(|number| {
            let missing = rig.read(2 * number, 0);
            let write = rig.write(2 * number + 1, 512, 512, true);
            rig.send(Pdu::ScsiCommand(write));
            missing
        })
        .collect();
    let begun = rig.now;
    let ended = missing.into_iter().find_map(|missing| {
        rig.session.note_contention(true, rig.now);
        let ended = rig.pass(Duration::from_secs(10)).err();
        rig.send(Pdu::ScsiCommand(missing));
        ended
    });
    assert!(matches!(ended, Some(TargetSessionError::Slow(_))), "{ended:?}");
    assert!(rig.now - begun <= Duration::from_secs(75), "{:?}", rig.now - begun);
}

#[test]
fn an_initiator_that_waits_for_the_target_is_not_stalled() {
    let settings = Settings { room_time: Duration::from_secs(3600), ..Settings::default() };
    let mut rig = Rig::with(KEYS, settings);
    rig.session.limit_waiting(FIRST);
    let write = rig.write(1, 2 * FIRST as u32, 1024, true);
    rig.send(Pdu::ScsiCommand(write));
    assert!(rig.admit(1).is_empty(), "there is no room");
    for second in 0..60 {
        assert_eq!(rig.pass(Duration::from_secs(1)), Ok(()));
        let ping = rig.ping(1000 + second, 0);
        rig.send(Pdu::NopOut(ping));
    }
    rig.session.limit_waiting(2 * FIRST);
    assert_eq!(r2ts(&rig.output()).len(), 1);
    // The target has sent an R2T, so from now on the initiator must make progress.
    rig.pass(Duration::from_secs(14)).unwrap();
    let ping = rig.ping(2000, 0);
    rig.send(Pdu::NopOut(ping));
    assert!(matches!(rig.pass(Duration::from_secs(15)), Err(TargetSessionError::Stalled(_))));
}

/// Calls `excuse` every second. Returns after how many seconds the session ends.
fn ended_after(rig: &mut Rig, excuse: impl Fn(&mut Rig)) -> u64 {
    for second in 1..1000 {
        excuse(rig);
        if let Err(error) = rig.pass(Duration::from_secs(1)) {
            assert!(matches!(error, TargetSessionError::Stalled(_)), "{error}");
            return second;
        }
        let ping = rig.ping(1000, 0);
        rig.send(Pdu::NopOut(ping));
    }
    panic!("it does not end");
}

/// A regression test. An initiator that never read our output was never considered stalled,
/// although the target read from its connection.
#[test]
fn delays_that_the_target_caused_are_excused_for_at_most_a_minute() {
    let hole = || {
        let mut rig = Rig::new(KEYS);
        rig.next_cmd_sn();
        let write = rig.write(1, 4096, 4096, true);
        rig.send(Pdu::ScsiCommand(write));
        rig
    };
    let unsolicited = || {
        let mut rig = Rig::new(KEYS);
        let write = rig.write(1, 8192, 4096, false);
        rig.send(Pdu::ScsiCommand(write));
        rig
    };
    let solicited = || {
        let mut rig = Rig::new(KEYS);
        let write = rig.write(1, 8192, 0, true);
        rig.send(Pdu::ScsiCommand(write));
        assert_eq!(r2ts(&rig.admit(1)).len(), 1);
        rig
    };
    let takes_no_output = |rig: &mut Rig| rig.session.excuse_silence(crate::rig::CID, rig.now);
    let is_not_read = |rig: &mut Rig| rig.session.excuse_unread(crate::rig::CID, rig.now);
    assert_eq!(ended_after(&mut hole(), takes_no_output), 15);
    assert_eq!(ended_after(&mut unsolicited(), takes_no_output), 15);
    // The R2T may be part of the blocked output, so the initiator is excused for a minute.
    let asked = ended_after(&mut solicited(), takes_no_output);
    assert!((60..=76).contains(&asked), "{asked}");
    for rig in [&mut hole(), &mut unsolicited(), &mut solicited()] {
        let ended = ended_after(rig, is_not_read);
        assert!((60..=76).contains(&ended), "{ended}");
    }
}

/// A regression test. A piece of 16 KiB was charged with 16 KiB, but kept the whole receive buffer
/// in memory.
#[test]
fn waiting_data_keeps_no_receive_buffer() {
    let (hole, immediate, data) = (0, 1, 2);
    for case in [hole, immediate, data] {
        let mut rig = Rig::new(KEYS);
        let buffer = bytes::Bytes::from(pattern(0, 65_536).to_vec());
        let mut missing = None;
        let pdu = match case {
            0 => {
                missing = Some(rig.read(1, 0));
                Pdu::ScsiCommand(rig.write(2, 16_384, 16_384, true))
            }
            1 => Pdu::ScsiCommand(rig.write(2, 32_768, 16_384, false)),
            _ => {
                let write = rig.write(2, 32_768, 0, false);
                rig.send(Pdu::ScsiCommand(write));
                data_out(2, Ttt::NONE, 0, 0, 16_384, false)
            }
        };
        let frame = PduFrame { data: buffer.slice(..16_384), is_shared: true, ..frame(pdu) };
        rig.try_frame(frame).0.unwrap();
        assert!(buffer.is_unique(), "case {case}");
        let length = match missing {
            Some(missing) => {
                rig.send(Pdu::ScsiCommand(missing));
                rig.command();
                16_384
            }
            None => {
                let data_sn = u32::from(case == data);
                rig.send(data_out(2, Ttt::NONE, data_sn, 16_384, 16_384, true));
                32_768
            }
        };
        assert_eq!(rig.command().data_out.concat(), pattern(0, length).to_vec());
    }
    // Data that goes to the driver at once is not copied.
    let mut rig = Rig::new(KEYS);
    let buffer = bytes::Bytes::from(pattern(0, 65_536).to_vec());
    let shared = |pdu| PduFrame { data: buffer.slice(..16_384), is_shared: true, ..frame(pdu) };
    let write = rig.write(1, 16_384, 16_384, true);
    rig.try_frame(shared(Pdu::ScsiCommand(write))).0.unwrap();
    let write = rig.write(2, 16_384, 0, false);
    rig.send(Pdu::ScsiCommand(write));
    rig.try_frame(shared(data_out(2, Ttt::NONE, 0, 0, 16_384, true))).0.unwrap();
    for _ in 0..2 {
        assert_eq!(rig.command().data_out[0].as_ptr(), buffer.as_ptr());
    }
}

#[test]
fn aborted_writes_free_their_room() {
    let mut rig = limited(8 * FIRST);
    for itt in 1..=3 {
        let write = rig.write(itt, FIRST as u32, 512, false);
        rig.send(Pdu::ScsiCommand(write));
    }
    rig.next_cmd_sn();
    let early = rig.write(9, FIRST as u32, FIRST, true);
    rig.send(Pdu::ScsiCommand(early));
    assert_eq!(rig.session.waiting_bytes(), 3 * 512 + FIRST);
    rig.session.abort_tasks(None);
    assert_eq!(rig.session.waiting_bytes(), FIRST);
    while let Some(event) = rig.session.poll_event() {
        assert!(matches!(event, TargetEvent::Abort(_) | TargetEvent::Admission(_)), "{event:?}");
    }
    rig.session.drop_connection(crate::rig::CID, rig.now);
    assert_eq!(rig.session.waiting_bytes(), 0);
}
