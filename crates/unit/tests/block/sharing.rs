//! Tests a unit that several gateways share: which claims it grants, and malformed parameter lists.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use coherence::{CoherenceRange, CoherenceReply, CoherenceRequest, CoherenceToken, read_answers};
use scsi::{ClaimAction, ClaimParameters, Command, Sense, VendorCommand};
use unit::{ClaimedUnit, LogicalUnit, Nexus, Settings, Share};
use volume::{FaultCallKind, FaultRule, Symptom};

use crate::{
    claim::now,
    host::{Host, MemoryStore, geometry, pattern},
};

fn shared(store: &Arc<MemoryStore>) -> Host {
    let share = Some(Share { grain_bytes: 64 << 10, lease_ms: 1000 });
    Host::with_store_and_settings(geometry(), Settings { share, ..Settings::default() }, store)
}

/// Name of the initiator in sessions for which a test gives no other name.
const HOST: &str = "iqn.2026-11.io.forebay:host";

/// Returns a session of another initiator, and the parameters of its claim.
fn stranger(host: &Host, log: u8) -> (Nexus, ClaimParameters) {
    let owner = format!("iqn.2026-11.io.forebay:{log}");
    let initiator_port = format!("{owner},i,0x{log:012x}").into();
    (
        Nexus { initiator_port, ..host.other(log.into()) },
        ClaimParameters { owner, ..claim(log, true) },
    )
}

fn claim(log: u8, shares: bool) -> ClaimParameters {
    ClaimParameters {
        owner: HOST.into(),
        instance: [log; 16],
        generation: 1,
        opening: 1,
        writes_back: true,
        shares,
        confirmed: None,
        ..ClaimParameters::default()
    }
}

fn list(requests: &[CoherenceRequest]) -> Vec<u8> {
    coherence::write_requests(requests).0
}

fn claims(host: &Host, from: &Nexus, asked: &ClaimParameters) -> Option<Sense> {
    let list = asked.to_bytes();
    let action = ClaimAction::Claim;
    let command = VendorCommand::ClaimOut { action, parameter_list_length: list.len() as u16 };
    host.send_as(from, &command.encode(), &list).sense
}

fn asks(host: &Host, from: &Nexus, list: &[u8]) -> Option<Sense> {
    let command = VendorCommand::TokenOut { parameter_list_length: list.len() as u32 };
    host.send_as(from, &command.encode(), list).sense
}

fn hears(host: &Host, from: &Nexus) -> Vec<CoherenceReply> {
    let command = VendorCommand::TokenIn { wait_ms: 0, allocation_length: 1 << 20 };
    let done = host.send_as(from, &command.encode(), &[]);
    assert_eq!(done.sense, None);
    read_answers(&done.data_in.into_bytes()).expect("a list").2
}

fn writes(host: &Host, from: &Nexus, lba: u64) -> Option<Sense> {
    host.send_as(from, &Command::write(lba, 1, false).encode(), &pattern(1, 1)).sense
}

/// Lets a gateway join and request the exclusive token for the first range.
fn has_token(host: &Host, from: &Nexus) {
    let join = CoherenceRequest::Join { number: 1, exclusive: Vec::new() };
    assert_eq!(asks(host, from, &list(&[join])), None);
    let Some(CoherenceReply::Joined { life, .. }) = hears(host, from).pop() else {
        panic!("no answer")
    };
    let (range, token, number) = (CoherenceRange(0), CoherenceToken::ExclusiveWrite, 7);
    let acquire = CoherenceRequest::Acquire { life, range, token, number };
    assert_eq!(asks(host, from, &list(&[acquire])), None);
}

#[test]
fn only_the_holder_of_the_token_can_write() {
    let store = Arc::new(MemoryStore::default());
    let host = shared(&store);
    let (a, b) = (host.other(2), host.other(3));
    assert_eq!(writes(&host, &host.nexus, 0), None, "no gateway shares the unit yet");
    assert_eq!(claims(&host, &a, &claim(1, true)), None);
    assert_eq!(claims(&host, &b, &claim(2, true)), None);
    has_token(&host, &a);
    assert!(matches!(hears(&host, &a)[..], [CoherenceReply::Granted { .. }]));
    let protected = Some(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED);
    assert_eq!(writes(&host, &a, 0), None);
    assert_eq!(writes(&host, &a, 128), protected, "another range");
    assert_eq!(writes(&host, &host.nexus, 0), protected);
    has_token(&host, &b);
    assert!(hears(&host, &b).is_empty(), "the other has it");
    assert_eq!(writes(&host, &b, 0), protected);
    assert!(matches!(hears(&host, &a)[..], [CoherenceReply::Recall { .. }]));
}

#[test]
fn sessions_without_a_shared_claim_and_damaged_lists_are_refused() {
    let store = Arc::new(MemoryStore::default());
    let host = shared(&store);
    let renew = list(&[CoherenceRequest::Renew { life: 1, sent: 1 }]);
    assert_eq!(asks(&host, &host.nexus, &renew), Some(Sense::CLAIM_FENCED));
    assert_eq!(claims(&host, &host.nexus, &claim(1, false)), Some(Sense::CLAIM_NOT_SHARED));
    assert_eq!(claims(&host, &host.nexus, &claim(1, true)), None);
    let mut wrong = renew.clone();
    wrong[33] ^= 1;
    let list = Some(Sense::invalid_field_in_parameter_list(0));
    assert_eq!(asks(&host, &host.nexus, &wrong), list);
    // As many gateways are admitted as the list has room for.
    for log in 2..=16 {
        let (nexus, asked) = stranger(&host, log);
        assert_eq!(claims(&host, &nexus, &asked), None, "{log}");
    }
    let full = Some(Sense::CLAIM_HELD_BY_ANOTHER_LOG);
    let (nexus, asked) = stranger(&host, 17);
    assert_eq!(claims(&host, &nexus, &asked), full);
}

#[test]
fn one_initiator_cannot_take_the_claims_of_all_gateways() {
    let store = Arc::new(MemoryStore::default());
    let host = shared(&store);
    let refused = Some(Sense::CLAIM_HELD_BY_ANOTHER_LOG);
    let first = host.other(2);
    let invented =
        ClaimParameters { owner: "iqn.2026-11.io.forebay:other".into(), ..claim(1, true) };
    let owner = Some(Sense::invalid_field_in_parameter_list(13));
    assert_eq!(claims(&host, &first, &invented), owner);
    assert_eq!(claims(&host, &first, &claim(1, true)), None);
    assert_eq!(claims(&host, &first, &claim(1, true)), None, "again in its session");
    assert_eq!(claims(&host, &first, &claim(2, true)), refused, "a second log in one session");
    // An initiator name may have no more members than its limit, even if it uses one session after the other, and even
    // over restarts of the unit.
    for log in 2..=4 {
        let host = shared(&store);
        assert_eq!(claims(&host, &host.other(2), &claim(log, true)), None, "{log}");
    }
    let host = shared(&store);
    assert_eq!(claims(&host, &host.other(2), &claim(5, true)), refused);
    assert_eq!(claims(&host, &host.other(3), &claim(4, true)), None, "it is known");
    let (nexus, asked) = stranger(&host, 6);
    assert_eq!(claims(&host, &nexus, &asked), None, "others have places");
}

#[test]
fn a_unit_that_is_not_shared_refuses_token_commands() {
    let host = Host::with_store(geometry(), &Arc::new(MemoryStore::default()));
    assert_eq!(claims(&host, &host.nexus, &claim(1, true)), Some(Sense::CLAIM_NOT_SHARED));
    let renew = list(&[CoherenceRequest::Renew { life: 1, sent: 1 }]);
    assert_eq!(asks(&host, &host.nexus, &renew), Some(Sense::INVALID_COMMAND_OPERATION_CODE));
}

#[test]
fn after_a_restart_no_token_is_granted_until_all_gateways_have_joined() {
    let store = Arc::new(MemoryStore::default());
    let host = shared(&store);
    let (a, b) = (host.other(2), host.other(3));
    assert_eq!(claims(&host, &a, &claim(1, true)), None);
    assert_eq!(claims(&host, &b, &claim(2, true)), None);
    let host = shared(&store);
    let (a, b) = (host.other(2), host.other(3));
    assert_eq!(claims(&host, &a, &claim(1, true)), None);
    has_token(&host, &a);
    assert!(hears(&host, &a).is_empty(), "the other may have it");
    assert_eq!(claims(&host, &b, &claim(2, true)), None);
    let join = CoherenceRequest::Join { number: 1, exclusive: vec![CoherenceRange(0)] };
    assert_eq!(asks(&host, &b, &list(&[join])), None);
    assert!(
        matches!(&hears(&host, &b)[0], CoherenceReply::Joined { grants, .. } if grants.len() == 1)
    );
    assert_eq!(writes(&host, &b, 0), None);
}

#[test]
fn a_dropped_gateway_can_join_without_tokens_after_another_opening() {
    let store = Arc::new(MemoryStore::default());
    let host = shared(&store);
    let a = host.other(2);
    assert_eq!(claims(&host, &a, &claim(1, true)), None);
    has_token(&host, &a);
    host.unit.nexus_closed(&a);
    now(host.unit.drop_claim()).expect("saved");
    let dropped = Some(Sense::CLAIM_DROPPED);
    // A gateway whose claim was dropped may not rejoin as long as it could still name its old tokens: after a restart,
    // the node would wait for this gateway.
    let again = ClaimParameters { accept_loss: true, ..claim(1, true) };
    assert_eq!(claims(&host, &a, &again), dropped, "the same opening");
    let opened =
        ClaimParameters { generation: 2, opening: 2, predecessors: vec![1], ..again.clone() };
    let dirty = ClaimParameters { is_dirty: true, ..opened.clone() };
    assert_eq!(claims(&host, &a, &dirty), dropped, "its ranges were granted to others");
    assert_eq!(claims(&host, &a, &opened), None);
}

/// A range that a gateway has released is granted to another one only after the last write to it has ended. A
/// write that the first gateway sends afterwards is refused.
#[test]
fn a_range_is_granted_to_another_gateway_when_the_last_write_of_its_holder_has_ended() {
    let host = shared(&Arc::new(MemoryStore::default()));
    let (a, b) = (host.other(2), host.other(3));
    assert_eq!(claims(&host, &a, &claim(1, true)), None);
    assert_eq!(claims(&host, &b, &claim(2, true)), None);
    has_token(&host, &a);
    let [CoherenceReply::Granted { life, range, grant, .. }] = hears(&host, &a)[..] else {
        panic!("it is granted")
    };
    has_token(&host, &b);
    let mut context = Context::from_waker(Waker::noop());
    let write = |from: &Nexus| {
        host.unit.execute(host.task(from, &Command::write(0, 1, false).encode(), &pattern(1, 1)))
    };
    host.faults.add(FaultRule::always(FaultCallKind::Write, Symptom::Hangs).times(1));
    let mut under_way = write(&a);
    assert!(std::pin::Pin::new(&mut under_way).poll(&mut context).is_pending());

    let requests = list(&[CoherenceRequest::Release { life, range, grant, keeps: false }]);
    let command = VendorCommand::TokenOut { parameter_list_length: requests.len() as u32 };
    let mut released = host.unit.execute(host.task(&a, &command.encode(), &requests));
    assert!(
        std::pin::Pin::new(&mut released).poll(&mut context).is_pending(),
        "it overtakes the write"
    );
    let mut later = write(&a);
    assert!(
        std::pin::Pin::new(&mut later).poll(&mut context).is_pending(),
        "it overtakes the release"
    );
    assert!(hears(&host, &b).is_empty(), "both may write");

    drop(under_way);
    assert!(std::pin::Pin::new(&mut released).poll(&mut context).is_ready());
    let Poll::Ready(later) = std::pin::Pin::new(&mut later).poll(&mut context) else {
        panic!("the later write still waits")
    };
    assert_eq!(later.sense, Some(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED));
    assert!(matches!(hears(&host, &b)[..], [CoherenceReply::Granted { .. }]));
    assert_eq!(writes(&host, &b, 0), None);
}

/// A gateway that joins again names the tokens that it has. None of its earlier writes may take effect after
/// that.
#[test]
fn a_gateway_that_joins_again_waits_for_its_earlier_writes() {
    let host = shared(&Arc::new(MemoryStore::default()));
    let (a, b) = (host.other(2), host.other(3));
    assert_eq!(claims(&host, &a, &claim(1, true)), None);
    assert_eq!(claims(&host, &b, &claim(2, true)), None);
    has_token(&host, &a);
    has_token(&host, &b);
    let mut context = Context::from_waker(Waker::noop());
    host.faults.add(FaultRule::always(FaultCallKind::Write, Symptom::Hangs).times(1));
    let write = Command::write(0, 1, false).encode();
    let mut under_way = host.unit.execute(host.task(&a, &write, &pattern(1, 1)));
    assert!(std::pin::Pin::new(&mut under_way).poll(&mut context).is_pending());
    let join = list(&[CoherenceRequest::Join { number: 2, exclusive: Vec::new() }]);
    let command = VendorCommand::TokenOut { parameter_list_length: join.len() as u32 };
    let mut joined = host.unit.execute(host.task(&a, &command.encode(), &join));
    assert!(
        std::pin::Pin::new(&mut joined).poll(&mut context).is_pending(),
        "it overtakes the write"
    );
    drop(under_way);
    assert!(std::pin::Pin::new(&mut joined).poll(&mut context).is_ready());
    assert!(matches!(hears(&host, &b)[..], [CoherenceReply::Granted { .. }]));
}
