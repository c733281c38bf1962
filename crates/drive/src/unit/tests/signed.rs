//! Tests of signed commands, from the CDB to the answer.

use object::{AttributeId, AttributeSelection, SetKeyRequest};
use osd::{
    AttributeParameters, ListInBuffer, PageToGet, Space, list,
    security::{IntegrityCheckValue, response_of_page, response_of_sense},
};

use super::*;
use crate::security::RefusedReason;

fn write(length: u64, start: u64) -> Command {
    Command::Write { object: OBJECT, length, start }
}

fn read(length: u64, start: u64) -> Command {
    Command::Read { object: OBJECT, length, start }
}

const BOTH: Permissions = Permissions(Permissions::READ.0 | Permissions::WRITE.0);

#[tokio::test]
async fn signed_writes_and_reads_pass_with_each_method() {
    let bench = Bench::new(SecurityMethod::CapKey).await;
    for method in [SecurityMethod::CapKey, SecurityMethod::CmdRsp] {
        let capability = Capability { method, ..bench.capability(BOTH) };
        let signed = bench.signed(bench.cdb(write(5, 0)), &capability);
        assert!(data_in(bench.run(&signed.bytes, b"hello".to_vec()).await).is_empty());
        let signed = bench.signed(bench.cdb(read(5, 0)), &capability);
        assert_eq!(data_in(bench.run(&signed.bytes, Vec::new()).await), b"hello");
    }
}

#[tokio::test]
async fn a_command_is_refused_before_its_data_is_solicited() {
    let bench = Bench::new(SecurityMethod::CmdRsp).await;
    let capability = bench.capability(Permissions::READ);
    let signed = bench.signed(bench.cdb(write(5, 0)), &capability);
    let refusal = bench.unit.admit(&bench.nexus, &Cdb::new(&signed.bytes), 5).unwrap_err();
    assert_eq!(codes(&refusal), Some((0x24, 0x00, Some(129))));
    let unsigned = bench.cdb(write(5, 0)).encode();
    let refusal = bench.unit.admit(&bench.nexus, &Cdb::new(&unsigned), 5).unwrap_err();
    assert_eq!(codes(&refusal), Some((0x24, 0x00, Some(82))));
    let signed = bench.signed(bench.cdb(write(5, 0)), &bench.capability(BOTH));
    let short = bench.unit.admit(&bench.nexus, &Cdb::new(&signed.bytes), 4).unwrap_err();
    assert_eq!(codes(&short), Some((0x1a, 0x00, None)), "less data announced than the CDB says");
    assert_eq!(bench.unit.store().performed(), 0);
    let refused: Vec<_> = bench.unit.security().refused().counted().collect();
    assert_eq!(refused, [(RefusedReason::Method, 1), (RefusedReason::Permissions, 1)]);
}

#[tokio::test]
async fn a_nonce_is_used_once_whether_the_data_came_at_once_or_not() {
    let bench = Bench::new(SecurityMethod::CmdRsp).await;
    let capability = bench.capability(BOTH);
    for solicited in [false, true] {
        let signed = bench.signed(bench.cdb(write(5, 0)), &capability);
        let data = || b"hello".to_vec();
        // Both copies of the command are admitted, since neither has been performed yet.
        let admit = || bench.unit.admit(&bench.nexus, &Cdb::new(&signed.bytes), 5).unwrap();
        let (one, two) = if solicited { (admit(), admit()) } else { (None, None) };
        let task = |admitted| Task { admitted, ..bench.task(&signed.bytes, data()) };
        data_in(bench.unit.execute(task(one)).await);
        let performed = bench.unit.store().performed();
        let again = bench.unit.execute(task(two)).await;
        assert_eq!(codes(&again), Some((0x24, 0x06, None)));
        assert_eq!(codes(&bench.run(&signed.bytes, data()).await), Some((0x24, 0x06, None)));
        assert_eq!(bench.unit.store().performed(), performed, "nothing was done");
    }
}

#[tokio::test]
async fn an_admitted_command_is_checked_again_when_its_data_has_come() {
    let bench = Bench::new(SecurityMethod::CmdRsp).await;
    let capability = bench.capability(BOTH);
    let admitted = |cdb: &SignedCdb| Task {
        admitted: bench.unit.admit(&bench.nexus, &Cdb::new(&cdb.bytes), 5).unwrap(),
        ..bench.task(&cdb.bytes, b"hello".to_vec())
    };
    let signed = bench.signed(bench.cdb(write(5, 0)), &capability);
    let task = admitted(&signed);
    let working = KeyToSet::Working { partition: PARTITION, version: VERSION };
    let keys = bench.unit.security().keys();
    keys.set_key(bench.unit.store(), &set_key(working, 1)).await.unwrap();
    assert_eq!(codes(&bench.unit.execute(task).await), Some((0x24, 0x00, Some(184))), "new key");
    keys.set_key(bench.unit.store(), &set_key(working, 0xa0)).await.unwrap();
    let tagged = Capability { policy_tag: 3, ..capability };
    let set = |value: u8| {
        let mut cdb = bench.cdb(Command::SetAttributes { object: OBJECT });
        cdb.attributes = AttributeParameters::SetOne {
            id: AttributeId::new(5, 0x4000_0001),
            length: 4,
            value: std::array::from_fn(|at| if at == 3 { value } else { 0 }),
        };
        let permissions = Permissions::SET_ATTRIBUTES | Permissions::POLICY_SECURITY;
        bench.signed(cdb, &bench.capability(permissions)).bytes
    };
    data_in(bench.run(&set(3), Vec::new()).await);
    let task = admitted(&bench.signed(bench.cdb(write(5, 0)), &tagged));
    data_in(bench.run(&set(4), Vec::new()).await);
    assert_eq!(codes(&bench.unit.execute(task).await), Some((0x24, 0x00, Some(140))), "new tag");
    assert_eq!(bench.unit.store().data(OBJECT).unwrap(), b"");
}

#[tokio::test]
async fn the_status_good_is_proved_in_the_current_command_page() {
    let bench = Bench::new(SecurityMethod::CmdRsp).await;
    let mut cdb = bench.cdb(read(0, 0));
    let get = list::encode_selections(&[AttributeSelection::One(AttributeId::new(0xffff_fffe, 1))]);
    let space = Space { offset: 0, allocation_length: 64 };
    cdb.attributes = AttributeParameters::Lists {
        get: Some(ListInBuffer { length: get.len() as u32, offset: 0 }),
        retrieved: Some(space),
        set: None,
    };
    // The permission to read suffices to read the current command page.
    let signed = bench.signed(cdb, &bench.capability(Permissions::READ));
    let answer = data_in(bench.run(&signed.bytes, get).await);
    let current = object::CurrentCommand {
        object_type: Some(ObjectType::UserObject),
        object: OBJECT,
        ..object::CurrentCommand::default()
    };
    let page = osd::current_command_page(&current, &IntegrityCheckValue::ZERO);
    let expected = response_of_page(&signed.key, cdb.nonce, &page);
    assert_eq!(answer[24..56], expected.0);

    let mut cdb = bench.cdb(read(0, 0));
    let get =
        Some(PageToGet { page: 0xffff_fffe, space: Space { offset: 0, allocation_length: 80 } });
    cdb.attributes = AttributeParameters::Page { get, set: None };
    let signed = bench.signed(cdb, &bench.capability(Permissions::READ));
    let answer = data_in(bench.run(&signed.bytes, Vec::new()).await);
    let (parsed, value) = osd::parse_current_command(&answer).unwrap();
    assert_eq!((answer.len(), parsed), (76, current));
    assert_eq!(value, response_of_page(&signed.key, cdb.nonce, &page));
}

#[tokio::test]
async fn a_refusal_is_proved_in_the_sense_data() {
    let bench = Bench::new(SecurityMethod::CmdRsp).await;
    let signed = bench.signed(bench.cdb(write(5, 0)), &bench.capability(Permissions::READ));
    let refused = bench.run(&signed.bytes, b"hello".to_vec()).await;
    let check = |completion: &Completion, signed: &SignedCdb| {
        let descriptors = completion.object_sense.as_deref().unwrap();
        let value = IntegrityCheckValue(descriptors.response_integrity.unwrap());
        let (bytes, at) = descriptors.encode(&completion.sense.unwrap());
        let at = at.unwrap();
        let expected = response_of_sense(&signed.key, signed.cdb.nonce, 2, &bytes, at);
        assert_eq!(value, expected);
        let object = descriptors.object.unwrap();
        assert_eq!((object.partition, object.object), (OBJECT.partition, OBJECT.object));
    };
    check(&refused, &signed);
    let signed = bench.signed(bench.cdb(read(10, 0)), &bench.capability(Permissions::READ));
    let past_end = bench.run(&signed.bytes, Vec::new()).await;
    assert_eq!(codes(&past_end), Some((0x3b, 0x17, None)));
    check(&past_end, &signed);
    let mut forged = signed.clone();
    forged.bytes[40] ^= 1;
    let unproved = bench.run(&forged.bytes, Vec::new()).await;
    assert_eq!(unproved.object_sense.unwrap().response_integrity, None, "no key, no proof");
}

#[tokio::test]
async fn set_key_over_the_wire_makes_its_key_valid_and_cannot_be_replayed() {
    let bench = Bench::empty(SecurityMethod::CmdRsp).await;
    let partition = PARTITION;
    bench.unit.store().add(ObjectAddress::partition(partition), ObjectType::Partition);
    bench.unit.store().add(OBJECT, ObjectType::UserObject);
    let seed = set_key(KeyToSet::Root, 0xa0).seed;
    let (mut signer, mut requests) = (master(), Vec::new());
    for (key, object_type) in [
        (KeyToSet::Root, ObjectType::Root),
        (KeyToSet::Partition { partition }, ObjectType::Partition),
        (KeyToSet::Working { partition, version: VERSION }, ObjectType::Partition),
    ] {
        let request: SetKeyRequest = set_key(key, 0xa0);
        let command = Command::SetKey(request);
        let permissions = Permissions::DEVICE_MANAGEMENT | Permissions::POLICY_SECURITY;
        let method = SecurityMethod::CmdRsp;
        let capability = Capability::for_object(command.object(), object_type, permissions, method);
        let signed = bench.signed_with(bench.cdb(command), &capability, &signer.authentication);
        data_in(bench.run(&signed.bytes, Vec::new()).await);
        requests.push(signed.bytes);
        signer = signer.derive(&seed);
    }
    let signed = bench.signed(bench.cdb(read(0, 0)), &bench.capability(Permissions::READ));
    data_in(bench.run(&signed.bytes, Vec::new()).await);
    for request in requests {
        assert_eq!(codes(&bench.run(&request, Vec::new()).await), Some((0x24, 0x06, None)));
    }
    let signed = bench.signed(bench.cdb(read(0, 0)), &bench.capability(Permissions::READ));
    data_in(bench.run(&signed.bytes, Vec::new()).await);
}

#[tokio::test]
async fn a_security_token_is_valid_in_its_session_only() {
    let bench = Bench::new(SecurityMethod::CapKey).await;
    let capability =
        Capability { method: SecurityMethod::CapKey, ..bench.capability(Permissions::READ) };
    let signed = bench.signed(bench.cdb(read(0, 0)), &capability);
    data_in(bench.run(&signed.bytes, Vec::new()).await);
    let token = bench.token();
    bench.unit.nexus_closed(&bench.nexus);
    bench.unit.nexus_opened(&bench.nexus);
    assert_ne!(bench.token(), token);
    let _ = bench.run(&[0; 6], Vec::new()).await;
    let stolen = bench.run(&signed.bytes, Vec::new()).await;
    assert_eq!(codes(&stolen), Some((0x24, 0x00, Some(184))));
}

#[tokio::test]
async fn clients_read_the_clock_and_the_names_of_the_keys() {
    let bench = Bench::new(SecurityMethod::CmdRsp).await;
    let get = async |object: ObjectAddress, selections: &[AttributeSelection], key: &Key| {
        let get = list::encode_selections(selections);
        let mut cdb = bench.cdb(Command::GetAttributes { object });
        cdb.attributes = AttributeParameters::Lists {
            get: Some(ListInBuffer { length: get.len() as u32, offset: 0 }),
            retrieved: Some(Space { offset: 0, allocation_length: 1 << 12 }),
            set: None,
        };
        let permissions = Permissions::GET_ATTRIBUTES | Permissions::POLICY_SECURITY;
        let object_type = object.known_type().unwrap();
        let method = SecurityMethod::CmdRsp;
        let capability = Capability::for_object(object, object_type, permissions, method);
        let signed = bench.signed_with(cdb, &capability, key);
        let answer = data_in(bench.run(&signed.bytes, get).await);
        list::parse_attributes(&answer.into(), 100).unwrap()
    };
    let one = |page, number| AttributeSelection::One(AttributeId::new(page, number));
    let seed = set_key(KeyToSet::Root, 0xa0).seed;
    let root = master().derive(&seed);
    let selections = [one(0x9000_0001, 0x100), one(0x9000_0005, 0x7ffe), one(0x9000_0005, 0x7)];
    let found = get(ObjectAddress::ROOT, &selections, &root.authentication).await;
    let now = bench.unit.security().clock().now();
    assert_eq!(found[0].value.as_ref(), now.to_bytes());
    assert_eq!(found[1].value.as_ref(), [7; 7]);
    assert_eq!(found[2].value.as_ref(), [0, 0x0f]);
    let partition = root.derive(&seed);
    let page = [AttributeSelection::Page(0x3000_0005)];
    let found = get(ObjectAddress::partition(PARTITION), &page, &partition.authentication).await;
    let working = AttributeId::new(0x3000_0005, 0x8000 + u32::from(VERSION));
    assert!(found.iter().any(|attribute| attribute.id == working && attribute.value == [7; 7][..]));
}

#[tokio::test]
async fn lists_in_the_data_need_their_permissions_before_any_effect() {
    let bench = Bench::new(SecurityMethod::CmdRsp).await;
    let set = list::encode_attributes(&[object::Attribute::new(1, 9, vec![7; 8])]);
    let command = |permissions| {
        let mut cdb = bench.cdb(write(8, 0));
        let in_buffer = ListInBuffer { length: set.len() as u32, offset: 8 };
        cdb.attributes =
            AttributeParameters::Lists { get: None, retrieved: None, set: Some(in_buffer) };
        bench.signed(cdb, &bench.capability(permissions)).bytes
    };
    let out = [&[1; 8], &set[..]].concat();
    let refused = bench.run(&command(Permissions::WRITE), out.clone()).await;
    assert_eq!(codes(&refused), Some((0x24, 0x00, Some(129))));
    assert_eq!(bench.unit.store().performed(), 0);
    let both = Permissions::WRITE | Permissions::SET_ATTRIBUTES;
    data_in(bench.run(&command(both), out).await);
}

#[tokio::test]
async fn ranges_in_the_data_are_proved_and_limited_by_the_capability() {
    use object::{Continuation, ScatterEntry};
    let bench = Bench::new(SecurityMethod::CmdRsp).await;
    let limited = Capability {
        range: osd::AllowedRange { start: 100, length: 100 },
        ..bench.capability(Permissions::WRITE)
    };
    let command = |start: u64| {
        let mut cdb = bench.cdb(write(8, 0));
        let mut segment = osd::ContinuationSegment {
            service_action: osd::ServiceAction::Write,
            integrity: IntegrityCheckValue::ZERO,
            continuation: Continuation::ScatterGather(vec![ScatterEntry { start, length: 8 }]),
        };
        cdb.continuation_length = segment.encode().len() as u32;
        let signed = bench.signed(cdb, &limited);
        segment.integrity = signed.key.of_continuation(cdb.nonce, &segment.encode());
        (signed.bytes, [&segment.encode()[..], &[1; 8]].concat())
    };
    for start in [0, 93, 193] {
        let (cdb, out) = command(start);
        let outside = bench.run(&cdb, out).await;
        assert_eq!(codes(&outside), Some((0x24, 0x00, Some(40))), "{start}");
    }
    let (cdb, mut out) = command(0);
    // Without the key, a client alters the range so that it is within the capability's range.
    out[55] = 100;
    assert_eq!(codes(&bench.run(&cdb, out).await), Some((0x26, 0x0f, None)));
    assert_eq!(bench.unit.store().performed(), 0);
    let (cdb, out) = command(192);
    data_in(bench.run(&cdb, out).await);
}

#[tokio::test]
async fn set_key_needs_a_signed_command_whatever_the_unit_requires() {
    let request = Command::SetKey(set_key(KeyToSet::Root, 0xa0));
    let permissions = Permissions::DEVICE_MANAGEMENT | Permissions::POLICY_SECURITY;
    let capability =
        |method| Capability::for_object(ObjectAddress::ROOT, ObjectType::Root, permissions, method);
    let bench = Bench::empty(SecurityMethod::CapKey).await;
    let key = master().authentication;
    let once = bench.signed_with(bench.cdb(request), &capability(SecurityMethod::CapKey), &key);
    // An observer could send these bytes again in the same session, so SET KEY with CAPKEY is refused each time.
    for _ in 0..2 {
        let refused = bench.run(&once.bytes, Vec::new()).await;
        assert_eq!(codes(&refused), Some((0x24, 0x00, Some(82))));
    }
    assert_eq!(bench.unit.security().keys().root_identifier(), None);
    let signed = bench.signed_with(bench.cdb(request), &capability(SecurityMethod::CmdRsp), &key);
    data_in(bench.run(&signed.bytes, Vec::new()).await);
    assert_eq!(codes(&bench.run(&signed.bytes, Vec::new()).await), Some((0x24, 0x06, None)));
    assert_eq!(bench.unit.security().keys().root_identifier(), Some([7; 7]));

    let bench = Bench::empty(SecurityMethod::NoSec).await;
    let unsigned = bench.run(&bench.cdb(request).encode(), Vec::new()).await;
    assert_eq!(codes(&unsigned), Some((0x24, 0x00, Some(82))));
}

#[tokio::test]
async fn a_refused_time_of_a_nonce_is_answered_with_the_time_of_the_drive() {
    let bench = Bench::new(SecurityMethod::CmdRsp).await;
    let mut cdb = bench.cdb(read(0, 0));
    cdb.nonce.time = object::Timestamp::from_ms(1);
    let signed = bench.signed(cdb, &bench.capability(Permissions::READ));
    let refused = bench.run(&signed.bytes, Vec::new()).await;
    assert_eq!(codes(&refused), Some((0x24, 0x07, None)));
    let now = bench.unit.security().clock().now().as_ms();
    assert_eq!(refused.sense.unwrap().information, Some(now));
    assert!(refused.object_sense.unwrap().response_integrity.is_some(), "the time is signed");
}

/// A client with a capability for one object must not find out which other objects exist.
#[tokio::test]
async fn a_capability_for_one_object_shows_nothing_about_others() {
    let bench = Bench::new(SecurityMethod::CmdRsp).await;
    let exists = ObjectAddress::new(PARTITION, 0x1_0002);
    bench.unit.store().add(exists, ObjectType::UserObject);
    let absent = ObjectAddress::new(PARTITION, 0x1_0003);
    // `without_key` is in a partition that has no key, `nowhere` in a partition that does not exist.
    let without_key = ObjectAddress::new(PARTITION + 1, 0x1_0001);
    bench.unit.store().add(ObjectAddress::partition(PARTITION + 1), ObjectType::Partition);
    let nowhere = ObjectAddress::new(PARTITION + 2, 0x1_0001);
    let all = Permissions(u16::MAX);
    let commands: [fn(ObjectAddress) -> Command; 6] = [
        |object| Command::Read { object, length: 1, start: 0 },
        |object| Command::Write { object, length: 0, start: 0 },
        |object| Command::GetAttributes { object },
        |object| Command::Remove { object },
        |object| Command::ReadMap {
            object,
            allocation_length: 64,
            start: 0,
            map_type: object::MapType::All,
        },
        |object| Command::Create {
            partition: object.partition,
            requested: object.object,
            count: 1,
        },
    ];
    for command in commands {
        let mut answers = Vec::new();
        for object in [exists, absent, without_key, nowhere] {
            let signed = bench.signed(bench.cdb(command(object)), &bench.capability(all));
            answers.push(codes(&bench.run(&signed.bytes, Vec::new()).await));
        }
        assert!(answers[0].is_some(), "refused");
        assert_eq!(answers[0], answers[1], "{:?}", command(exists));
        assert_eq!(answers[2], answers[3], "{:?}", command(nowhere));
    }
    // Joining a collection would change it, and would show whether it exists.
    let collection = ObjectAddress::new(PARTITION, 0x1_0009);
    bench.unit.store().add(collection, ObjectType::Collection);
    for id in [collection.object, 0x1_000a] {
        let mut cdb = bench.cdb(Command::SetAttributes { object: OBJECT });
        let mut value = [0; 18];
        value[..8].copy_from_slice(&id.to_be_bytes());
        let page = AttributeId::new(0x4, 1);
        cdb.attributes = AttributeParameters::SetOne { id: page, length: 8, value };
        let permissions = Permissions::SET_ATTRIBUTES | Permissions::GET_ATTRIBUTES;
        let signed = bench.signed(cdb, &bench.capability(permissions));
        let refused = bench.run(&signed.bytes, Vec::new()).await;
        assert_eq!(codes(&refused), Some((0x24, 0x00, Some(129))));
    }
}
