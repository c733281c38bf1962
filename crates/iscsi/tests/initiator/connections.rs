//! Tests the initiator's pings and its distribution of commands over connections.

use bytes::Bytes;
use iscsi::{
    Cid, Itt, Pdu, Serial, Ttt,
    codec::Digests,
    keys::Parameters,
    pdu::{NopIn, Numbers},
    session::initiator::{
        CommandDistribution, CommandRequest, ConnectionTiming, DataPhase, InitiatorEvent,
        InitiatorSessionError, JoinedConnection,
    },
};
use scsi::{Cdb, Lun};

use crate::scene::{SECOND, Scene, numbers};

#[test]
fn pings_are_answered_under_their_tag() {
    let mut scene = Scene::new();
    let ping =
        NopIn { lun: Lun(5), itt: Itt::NONE, ttt: Ttt(3), numbers: numbers(), data: Bytes::new() };
    scene.receive(Pdu::NopIn(ping)).unwrap();
    match &scene.sent()[..] {
        [Pdu::NopOut(pong)] => {
            assert_eq!((pong.itt, pong.ttt, pong.lun), (Itt::NONE, Ttt(3), Lun(5)));
            assert!(pong.immediate, "it takes no place in the command order");
        }
        other => panic!("{other:?}"),
    }
}

/// With several connections, commands may arrive before their turn. LIO then advances ExpCmdSN over
/// them one by one, as it starts them. If LIO answers a ping in between, the ExpCmdSN in the answer
/// says that a command is missing although it has arrived.
#[test]
fn one_ping_answer_without_a_command_does_not_prove_that_it_is_lost() {
    let mut scene = Scene::new();
    let command = scene.submit(1, DataPhase::In(8));
    scene.answer_ping(5 * SECOND, command.cmd_sn).unwrap();
    scene.answer_ping(5 * SECOND, command.cmd_sn.next()).unwrap();
    let answer = scene.respond(command.itt);
    scene.receive(Pdu::ScsiResponse(answer)).unwrap();
    assert!(matches!(scene.event(), Some(InitiatorEvent::Completed { tag: 1, result: Ok(_) })));
}

#[test]
fn a_command_missing_in_two_ping_answers_ends_the_connection() {
    let mut scene = Scene::new();
    let command = scene.submit(1, DataPhase::In(8));
    scene.answer_ping(5 * SECOND, command.cmd_sn).unwrap();
    let lost = InitiatorSessionError::Unanswered("a command that did not arrive");
    assert_eq!(scene.answer_ping(5 * SECOND, command.cmd_sn), Err(lost));
}

#[test]
fn after_a_suspension_a_silent_connection_is_pinged_before_it_is_dropped() {
    let mut scene = Scene::new();
    scene.pass(3600 * SECOND).unwrap();
    assert!(matches!(scene.sent()[..], [Pdu::NopOut(_)]));
    scene.pass(4 * SECOND).unwrap();
    assert_eq!(scene.pass(SECOND), Err(InitiatorSessionError::Silent));
}

/// A regression test. Over a slow link, a ping waits behind seconds of data. The session used to
/// consider its connections failed one after the other, and to send their data again on the next
/// one.
#[test]
fn a_connection_that_carries_bytes_has_not_failed() {
    let mut scene = Scene::new();
    scene.pass(5 * SECOND).unwrap();
    assert!(matches!(scene.sent()[..], [Pdu::NopOut(_)]));
    for _ in 0..20 {
        scene.pass(4 * SECOND).unwrap();
        scene.session.note_carried(Cid(0), scene.now);
    }
    assert_eq!(scene.pass(5 * SECOND), Err(InitiatorSessionError::Silent));
}

#[test]
fn the_end_of_a_ping_in_the_output_is_known_until_it_is_answered() {
    let mut scene = Scene::new();
    assert_eq!(scene.session.asked(Cid(0)), None);
    scene.write(100);
    scene.pass(5 * SECOND).unwrap();
    let end = |scene: &mut Scene| scene.session.output(Cid(0)).expect("it is there").end();
    let ends = end(&mut scene);
    assert_eq!(scene.session.asked(Cid(0)), Some(ends));
    let pings = scene.sent();
    let [Pdu::NopOut(ping)] = &pings[..] else { panic!("{pings:?}") };
    assert_eq!(scene.session.output(Cid(0)).map(|output| output.written()), Some(ends));
    scene.write(100);
    assert!(end(&mut scene) > ends);
    assert_eq!(scene.session.asked(Cid(0)), Some(ends), "what comes after it is after it");
    let numbers = Numbers { exp_cmd_sn: Serial(3), ..scene.next_status() };
    let (lun, itt, ttt) = (Lun(0), ping.itt, Ttt::NONE);
    scene.receive(Pdu::NopIn(NopIn { lun, itt, ttt, numbers, data: Bytes::new() })).unwrap();
    assert_eq!(scene.session.asked(Cid(0)), None);
}

/// Submits eight reads, every second of which is long. Returns how many are sent on each of the two
/// connections.
fn spread_over_two(spread: CommandDistribution) -> [usize; 2] {
    let mut scene = Scene::new();
    let first = JoinedConnection {
        cid: Cid(1),
        digests: Digests::default(),
        max_send_data_segment_length: 1024,
        exp_stat_sn: Serial(7),
        exp_cmd_sn: Serial(1),
        max_cmd_sn: Serial(32),
    };
    scene.session.join(first, scene.now);
    scene.session.set_spread(spread);
    for tag in 0..8 {
        let request = CommandRequest {
            tag,
            lun: Lun(0),
            cdb: Cdb::new(&[0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            transfer: DataPhase::In(if tag % 2 == 0 { 512 } else { 64 * 512 }),
            time_out: 30 * SECOND,
        };
        scene.session.submit(request, scene.now).expect("there is room");
    }
    scene.session.transmit();
    [Cid(0), Cid(1)].map(|cid| scene.session.load(cid).expect("it is there").commands as usize)
}

#[test]
fn commands_go_to_the_least_loaded_connection_or_round_robin() {
    assert_eq!(spread_over_two(CommandDistribution::InTurn), [4, 4]);
    let [first, second] = spread_over_two(CommandDistribution::LeastToDo);
    assert!(
        first + second == 8 && first != second,
        "{first} and {second}: by bytes, not by number"
    );
}

/// A PDU that was made for a connection waits behind earlier output of that connection. Commands
/// with a later CmdSN wait for it at the target, even if their data on another connection has long
/// arrived.
#[test]
fn a_connection_that_makes_no_send_progress_gets_few_commands() {
    const SIZE: usize = 128 << 10;
    let parameters = Parameters {
        first_burst_length: SIZE as u32,
        max_send_data_segment_length: SIZE as u32,
        ..Parameters::default()
    };
    let mut scene = Scene::timed(parameters, ConnectionTiming::default());
    scene.session.join(
        JoinedConnection {
            cid: Cid(1),
            digests: Digests::default(),
            max_send_data_segment_length: SIZE as u32,
            exp_stat_sn: Serial(7),
            exp_cmd_sn: Serial(1),
            max_cmd_sn: Serial(32),
        },
        scene.now,
    );
    for tag in 0..16 {
        let request = CommandRequest {
            tag,
            lun: Lun(0),
            cdb: Cdb::new(&[0x2a, 0, 0, 0, 0, 0, 0, 1, 0, 0]),
            transfer: DataPhase::Out(vec![5; SIZE].into()),
            time_out: 30 * SECOND,
        };
        scene.session.submit(request, scene.now).expect("there is room");
    }
    // All output of connection 0 is sent, and no output of connection 1.
    for _ in 0..16 {
        scene.session.transmit();
        let output = scene.session.output(Cid(0)).expect("it is there");
        output.advance(output.len());
    }
    let commands = [Cid(0), Cid(1)].map(|cid| scene.session.load(cid).expect("there").commands);
    assert_eq!(commands, [15, 1]);
}

/// A program may lower `ping_time_out` and leave `stall_time_out` at its default, which is longer.
#[test]
fn a_ping_may_time_out_before_a_stall_is_detected() {
    let tenth = SECOND / 10;
    let timing = ConnectionTiming { ping_time_out: tenth, ..ConnectionTiming::default() };
    assert!(timing.stall_time_out > tenth);
    let mut scene = Scene::timed(Parameters::default(), timing);
    scene.pass(5 * SECOND).unwrap();
    assert!(matches!(scene.sent()[..], [Pdu::NopOut(_)]));
    assert_eq!(scene.session.poll_timeout(), Some(scene.now + tenth));
    assert_eq!(scene.pass(tenth), Err(InitiatorSessionError::Silent));
}
