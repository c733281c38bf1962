//! Tests of commands that are performed at the same time.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use object::{AttributeId, ObjectError};
use osd::AttributeParameters;

use super::*;

#[tokio::test]
async fn a_changed_policy_tag_is_answered_only_when_no_command_under_the_old_one_is_at_work() {
    let bench = Bench::new(SecurityMethod::CmdRsp).await;
    let held = bench.unit.store().hold_reads();
    let mut context = Context::from_waker(Waker::noop());
    let read = bench.cdb(Command::Read { object: OBJECT, length: 0, start: 0 });
    let read = bench.signed(read, &bench.capability(Permissions::READ));
    let mut read = pin!(bench.run(&read.bytes, Vec::new()));
    assert!(read.as_mut().poll(&mut context).is_pending());
    let set_tag = |value: u8| {
        let mut cdb = bench.cdb(Command::SetAttributes { object: OBJECT });
        let id = AttributeId::new(5, 0x4000_0001);
        let mut tag = [0; 18];
        tag[3] = value;
        cdb.attributes = AttributeParameters::SetOne { id, length: 4, value: tag };
        let permissions = Permissions::SET_ATTRIBUTES | Permissions::POLICY_SECURITY;
        bench.signed(cdb, &bench.capability(permissions)).bytes
    };
    let (first, second) = (set_tag(1), set_tag(2));
    let mut first = pin!(bench.run(&first, Vec::new()));
    let mut second = pin!(bench.run(&second, Vec::new()));
    assert!(first.as_mut().poll(&mut context).is_pending(), "the READ is at work");
    assert!(second.as_mut().poll(&mut context).is_pending());
    let stored = bench.unit.store().attribute(OBJECT, 5, 0x4000_0001).unwrap();
    assert_eq!(stored.as_ref(), [0, 0, 0, 2], "the tag is in force for new commands");
    held.add_permits(1);
    data_in(read.await);
    // Two changes of a policy access tag at the same time must not wait for each other.
    data_in(first.await);
    data_in(second.await);
}

#[tokio::test]
async fn an_aborted_read_does_not_delay_a_policy_tag() {
    let bench = Bench::new(SecurityMethod::CmdRsp).await;
    let _held = bench.unit.store().hold_reads();
    let mut context = Context::from_waker(Waker::noop());
    let read = bench.cdb(Command::Read { object: OBJECT, length: 0, start: 0 });
    let read = bench.signed(read, &bench.capability(Permissions::READ));
    {
        let mut read = pin!(bench.run(&read.bytes, Vec::new()));
        assert!(read.as_mut().poll(&mut context).is_pending());
    }
    let drained = pin!(bench.unit.security().gate().drain(OBJECT));
    assert_eq!(drained.poll(&mut context), Poll::Ready(()));
}

#[tokio::test]
async fn frozen_keys_take_effect_with_the_answer() {
    let bench = Bench::new(SecurityMethod::CmdRsp).await;
    let read = || {
        let cdb = bench.cdb(Command::Read { object: OBJECT, length: 0, start: 0 });
        bench.signed(cdb, &bench.capability(Permissions::READ)).bytes
    };
    data_in(bench.run(&read(), Vec::new()).await);
    let partition = ObjectAddress::partition(PARTITION);
    let mut cdb = bench.cdb(Command::SetAttributes { object: partition });
    let mut mask = [0; 18];
    mask[1] = 1 << VERSION;
    let id = AttributeId::new(0x3000_0005, 5);
    cdb.attributes = AttributeParameters::SetOne { id, length: 2, value: mask };
    let permissions = Permissions::SET_ATTRIBUTES | Permissions::POLICY_SECURITY;
    let (kind, method) = (ObjectType::Partition, SecurityMethod::CmdRsp);
    let capability = Capability::for_object(partition, kind, permissions, method);
    let seed = set_key(KeyToSet::Root, 0xa0).seed;
    let key = master().derive(&seed).derive(&seed).authentication;
    data_in(bench.run(&bench.signed_with(cdb, &capability, &key).bytes, Vec::new()).await);
    assert_eq!(codes(&bench.run(&read(), Vec::new()).await), Some((0x24, 0x05, None)));
}

#[tokio::test]
async fn an_error_of_the_store_becomes_sense_data_and_other_commands_pass() {
    let bench = Bench::new(SecurityMethod::NoSec).await;
    let write = OsdCdb::new(Command::Write { object: OBJECT, length: 5, start: 0 }).encode();
    bench.unit.store().fail_next(ObjectError::Quota { used: 1, limit: 1 });
    let full = bench.run(&write, b"hello".to_vec()).await;
    assert_eq!(codes(&full), Some((0x55, 0x07, None)));
    assert_eq!(full.data_out_length, Some(5));
    data_in(bench.run(&write, b"hello".to_vec()).await);
}
