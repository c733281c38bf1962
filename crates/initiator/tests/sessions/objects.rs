//! Tests the object store of the initiator with an object drive as its target.

use std::{sync::atomic::Ordering, time::Duration};

use crate::support::{
    drive::{Drive, Lie, SYSTEM, StopAt, chain, owner},
    relay::Relay,
};
use initiator::{Credential, Error, GrantedCapability, RemoteObjects, RemoteVolume};
use object::{
    Attribute, AttributeId, AttributeSelection, Command, Continuation, FlushScope, ListRequest,
    ObjectAddress, ObjectError, ObjectReply, ObjectRequest, ReplyData, ScatterEntry,
};
use osd::{
    Capability, Permissions, ServiceAction,
    security::{SecurityMethod, SigningKey},
};
use volume::Data;

const PARTITION: u64 = 0x20000;
const LENGTH: AttributeId = AttributeId::new(0x1, 0x82);
const METHODS: [SecurityMethod; 4] = [
    SecurityMethod::NoSec,
    SecurityMethod::CapKey,
    SecurityMethod::CmdRsp,
    SecurityMethod::AllData,
];

fn credential(method: SecurityMethod) -> Credential {
    if method == SecurityMethod::NoSec { Credential::None } else { owner(method) }
}

async fn open(drive: &Drive, method: SecurityMethod) -> RemoteObjects {
    let settings = Drive::settings(drive.address);
    RemoteObjects::connect(settings, credential(method), None).await.expect("a drive")
}

async fn request(objects: &RemoteObjects, command: Command) -> Result<ObjectReply, ObjectError> {
    objects.request(ObjectRequest::new(command)).await
}

/// Creates a partition, and an object in this partition.
async fn object(objects: &RemoteObjects) -> ObjectAddress {
    request(objects, Command::CreatePartition { requested: PARTITION }).await.expect("a partition");
    let create = Command::Create { partition: PARTITION, requested: 0, count: 1 };
    let created = request(objects, create).await.expect("an object");
    assert_eq!(created.members[0].id, created.current.object.object);
    created.current.object
}

async fn write(objects: &RemoteObjects, object: ObjectAddress, data: &[u8], start: u64) {
    let command = Command::Write { object, length: data.len() as u64, start };
    let write = ObjectRequest::new(command).with_data(Data::from(data.to_vec()));
    objects.request(write).await.expect("a write");
}

async fn read(
    objects: &RemoteObjects,
    object: ObjectAddress,
    start: u64,
    length: u64,
) -> Result<(Vec<u8>, Option<u64>), ObjectError> {
    let reply = request(objects, Command::Read { object, length, start }).await?;
    let ReplyData::Bytes(data) = reply.data else { panic!("a read returns bytes") };
    Ok((data.into_bytes().to_vec(), reply.read_past_end))
}

#[tokio::test]
async fn objects_are_written_and_read_with_every_security_method() {
    for method in METHODS {
        let drive = Drive::start(method != SecurityMethod::NoSec).await;
        let objects = open(&drive, method).await;
        let object = object(&objects).await;
        let data: Vec<u8> = (0..1_000_003u32).map(|at| (at % 251) as u8).collect();
        write(&objects, object, &data, 5).await;
        let (found, past_end) = read(&objects, object, 5, data.len() as u64).await.unwrap();
        assert!(found == data && past_end.is_none(), "{method:?}");
        let (found, past_end) = read(&objects, object, 1_000_000, 100).await.unwrap();
        assert_eq!((found.len(), past_end), (8, Some(8)), "{method:?}");
        let append = Command::Append { object, length: 3 };
        let append = ObjectRequest::new(append).with_data(Data::from(b"abc".to_vec()));
        let appended = objects.request(append.getting(AttributeSelection::One(LENGTH))).await;
        let appended = appended.unwrap();
        assert_eq!(appended.current.append_start, 1_000_008);
        assert_eq!(&appended.attributes[0].value[..], 1_000_011u64.to_be_bytes());
        let name = Attribute::new(0x1, 0x9, b"name".to_vec());
        let set = ObjectRequest::new(Command::SetAttributes { object }).setting(name.clone());
        objects.request(set).await.unwrap();
        let get = ObjectRequest::new(Command::GetAttributes { object })
            .getting(AttributeSelection::One(name.id))
            .getting(AttributeSelection::One(AttributeId::new(0x10000, 9)));
        let got = objects.request(get).await.unwrap();
        assert_eq!(got.attributes[0], name);
        assert!(got.attributes[1].value.is_empty());
        let list = ListRequest { allocation_length: 4096, ..ListRequest::default() };
        let listed = request(&objects, Command::List { partition: PARTITION, list }).await.unwrap();
        let ReplyData::List(listed) = listed.data else { panic!("a list") };
        assert_eq!(listed.objects.len(), 1);
        request(&objects, Command::Remove { object }).await.unwrap();
        let missing = read(&objects, object, 0, 1).await.unwrap_err();
        assert_eq!(missing, ObjectError::NoSuchObject { object }, "{method:?}");
        objects.close().await;
        drive.stop().await;
    }
}

#[tokio::test]
async fn a_write_with_a_continuation_segment_is_signed_with_it() {
    let drive = Drive::start(true).await;
    let objects = open(&drive, SecurityMethod::AllData).await;
    let object = object(&objects).await;
    let mut write = ObjectRequest::new(Command::Write { object, length: 4, start: 0 });
    write.data = Data::from(b"data".to_vec());
    write.continuation = Continuation::ScatterGather(vec![ScatterEntry { start: 0, length: 4 }]);
    objects.request(write).await.unwrap();
    assert_eq!(drive.unit.content(object).unwrap(), b"data");
}

#[tokio::test]
async fn a_credential_permits_only_what_its_capabilities_say() {
    let drive = Drive::start(true).await;
    let objects = open(&drive, SecurityMethod::CmdRsp).await;
    let object = object(&objects).await;
    write(&objects, object, b"hello", 0).await;
    let capability = Capability::for_object(
        object,
        object::ObjectType::UserObject,
        Permissions::READ,
        SecurityMethod::CmdRsp,
    );
    let signing = SigningKey::Working { partition: PARTITION };
    let (bytes, key) = chain().sign(&capability, signing, &SYSTEM);
    let granted = GrantedCapability::new(bytes, key.key).unwrap();
    let settings = Drive::settings(drive.address);
    let reader = Credential::Capabilities(vec![granted]);
    let reader = RemoteObjects::connect(settings, reader, None).await.unwrap();
    assert_eq!(read(&reader, object, 0, 5).await.unwrap().0, b"hello");
    let refused = request(&reader, Command::Remove { object }).await.unwrap_err();
    assert!(matches!(refused, ObjectError::Capability(_)), "{refused}");
    assert_eq!(drive.unit.performed(ServiceAction::Remove), 0);
}

#[tokio::test]
async fn a_drive_whose_clock_differs_is_used_by_its_own_clock() {
    let drive = Drive::start(true).await;
    drive.unit.ahead_ms.store(500_000, Ordering::Relaxed);
    let objects = open(&drive, SecurityMethod::CmdRsp).await;
    object(&objects).await;
    let ahead = objects.drive_time().as_ms();
    assert!(ahead > std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64 + 490_000);
    // The clock of the drive has jumped, as after a crash.
    drive.unit.ahead_ms.store(600_000, Ordering::Relaxed);
    let create = Command::Create { partition: PARTITION, requested: 0, count: 2 };
    assert_eq!(request(&objects, create).await.unwrap().members.len(), 2);
}

#[tokio::test]
async fn a_lying_drive_is_noticed() {
    let cases = [
        (Lie::StatusProof, SecurityMethod::CmdRsp),
        (Lie::DataProof, SecurityMethod::AllData),
        (Lie::ShortRead, SecurityMethod::NoSec),
        (Lie::OtherAttribute, SecurityMethod::CmdRsp),
        (Lie::AttributeLength, SecurityMethod::CmdRsp),
        (Lie::AttributeLength, SecurityMethod::NoSec),
        (Lie::UnsignedRefusal, SecurityMethod::CmdRsp),
        (Lie::ListOrder, SecurityMethod::CmdRsp),
        (Lie::OtherObject, SecurityMethod::NoSec),
        (Lie::ListLength, SecurityMethod::NoSec),
    ];
    for (lie, method) in cases {
        let drive = Drive::start(method != SecurityMethod::NoSec).await;
        let objects = open(&drive, method).await;
        let object = object(&objects).await;
        write(&objects, object, &[7; 64], 0).await;
        request(&objects, Command::Create { partition: PARTITION, requested: 0, count: 1 })
            .await
            .unwrap();
        *drive.unit.lie.lock() = lie;
        let command = match lie {
            Lie::ListOrder => {
                let list = ListRequest { allocation_length: 4096, ..ListRequest::default() };
                Command::List { partition: PARTITION, list }
            }
            Lie::OtherAttribute | Lie::AttributeLength | Lie::ListLength => {
                Command::GetAttributes { object }
            }
            Lie::OtherObject => Command::Create { partition: PARTITION, requested: 0, count: 1 },
            _ => Command::Read { object, length: 64, start: 0 },
        };
        let mut asked = ObjectRequest::new(command);
        if matches!(command, Command::GetAttributes { .. }) {
            asked = asked.getting(AttributeSelection::One(LENGTH));
        }
        let error = objects.request(asked).await.unwrap_err();
        assert!(matches!(error, ObjectError::NotGenuine(_)), "{lie:?}: {error}");
        // The drive returns correct data again, and the session continues.
        *drive.unit.lie.lock() = Lie::None;
        assert_eq!(read(&objects, object, 0, 64).await.unwrap().0, [7; 64]);
    }
}

#[tokio::test]
async fn an_append_whose_answer_was_lost_is_looked_up_and_not_repeated() {
    for method in [SecurityMethod::NoSec, SecurityMethod::CmdRsp, SecurityMethod::AllData] {
        for at in [StopAt::Begin, StopAt::End] {
            let drive = Drive::start(method != SecurityMethod::NoSec).await;
            let relay = Relay::start(drive.address).await;
            let mut settings = Drive::settings(relay.address);
            settings.error_recovery_level = 0;
            let objects = RemoteObjects::connect(settings, credential(method), None).await.unwrap();
            let object = object(&objects).await;
            write(&objects, object, b"begin", 0).await;
            drive.unit.stop_at(ServiceAction::Append, at);
            let append = Command::Append { object, length: 3 };
            let append = ObjectRequest::new(append).with_data(Data::from(b"end".to_vec()));
            let cut = async {
                drive.unit.stopped.notified().await;
                relay.cut();
            };
            let (appended, ()) = tokio::join!(objects.request(append), cut);
            assert_eq!(appended.unwrap().current.append_start, 5, "{method:?} {at:?}");
            assert_eq!(drive.unit.content(object).unwrap(), b"beginend");
            assert_eq!(drive.unit.performed(ServiceAction::Append), 1);
        }
    }
}

#[tokio::test]
async fn an_outcome_that_the_drive_has_forgotten_is_unknown() {
    let drive = Drive::start(true).await;
    let relay = Relay::start(drive.address).await;
    let mut settings = Drive::settings(relay.address);
    settings.error_recovery_level = 0;
    let credential = owner(SecurityMethod::CmdRsp);
    let objects = RemoteObjects::connect(settings, credential, None).await.unwrap();
    let object = object(&objects).await;
    drive.unit.stop_at(ServiceAction::Append, StopAt::End);
    let append = Command::Append { object, length: 3 };
    let append = ObjectRequest::new(append).with_data(Data::from(b"end".to_vec()));
    let cut = async {
        drive.unit.stopped.notified().await;
        drive.unit.forget_results();
        relay.cut();
    };
    let (appended, ()) = tokio::join!(objects.request(append), cut);
    assert_eq!(appended.unwrap_err(), ObjectError::OutcomeUnknown);
    assert_eq!(drive.unit.content(object).unwrap(), b"end", "performed once");
}

#[tokio::test]
async fn a_command_that_no_drive_answers_fails_within_its_time() {
    let drive = Drive::start(false).await;
    let mut relay = Relay::start(drive.address).await;
    let mut settings = Drive::settings(relay.address);
    settings.give_up_after = Duration::from_millis(200);
    settings.error_recovery_level = 0;
    let objects = RemoteObjects::connect(settings, Credential::None, None).await.unwrap();
    let object = object(&objects).await;
    drive.unit.stop_at(ServiceAction::Append, StopAt::End);
    let append = Command::Append { object, length: 3 };
    let append = ObjectRequest::new(append).with_data(Data::from(b"end".to_vec()));
    let cut = async {
        drive.unit.stopped.notified().await;
        relay.close().await;
    };
    let (appended, ()) = tokio::join!(objects.request(append), cut);
    assert_eq!(appended.unwrap_err(), ObjectError::OutcomeUnknown);
    let error = read(&objects, object, 0, 1).await.unwrap_err();
    assert!(matches!(error, ObjectError::Unreachable(_)), "{error}");
}

/// Cuts the connections after each number of bytes of a command with its data, and of its answer. The command is
/// performed exactly once.
#[tokio::test]
async fn a_connection_cut_anywhere_in_a_command_repeats_no_effect() {
    let drive = Drive::start(true).await;
    let relay = Relay::start(drive.address).await;
    for level in [0, 2] {
        let mut settings = Drive::settings(relay.address);
        settings.error_recovery_level = level;
        let credential = owner(SecurityMethod::CmdRsp);
        let objects = RemoteObjects::connect(settings, credential, None).await.unwrap();
        let partition = request(&objects, Command::CreatePartition { requested: 0 }).await.unwrap();
        let partition = partition.current.object.partition;
        let create = Command::Create { partition, requested: 0, count: 1 };
        let object = request(&objects, create).await.unwrap().current.object;
        let mut expected = Vec::new();
        // 400 KiB: immediate data, R2Ts and Data-Out. Steps of 37 KiB end within each kind of PDU.
        for (direction, most, step) in [(0, 420 << 10, 37 << 10), (1, 700, 41)] {
            for after in (0..most).step_by(step) {
                let piece = vec![(expected.len() % 251) as u8; 400 << 10];
                let append = Command::Append { object, length: piece.len() as u64 };
                let append = ObjectRequest::new(append).with_data(Data::from(piece.clone()));
                let begun = relay.passed[direction].load(Ordering::Relaxed);
                let cut = async {
                    while relay.passed[direction].load(Ordering::Relaxed) < begun + after as u64 {
                        tokio::task::yield_now().await;
                    }
                    relay.cut();
                };
                let append = objects.request(append);
                tokio::pin!(append, cut);
                let appended = tokio::select! {
                    appended = &mut append => appended,
                    () = &mut cut => append.await,
                };
                let appended = appended.unwrap();
                assert_eq!(appended.current.append_start, expected.len() as u64);
                expected.extend(piece);
                let length = drive.unit.content(object).unwrap().len();
                assert_eq!(length, expected.len(), "level {level}, {after} bytes");
            }
        }
        assert!(drive.unit.content(object).unwrap() == expected);
        objects.close().await;
    }
}

#[tokio::test]
async fn one_flush_after_a_restart_of_the_drive_reports_that_changes_may_be_lost() {
    let drive = Drive::start(true).await;
    let relay = Relay::start(drive.address).await;
    let credential = owner(SecurityMethod::CmdRsp);
    let mut settings = Drive::settings(relay.address);
    // At level 2 the session would survive its connection, and the restart is only simulated.
    settings.error_recovery_level = 0;
    let objects = RemoteObjects::connect(settings, credential, None).await.unwrap();
    let object = object(&objects).await;
    let flush = || request(&objects, Command::FlushOsd { scope: FlushScope::RangeOrEverything });
    write(&objects, object, b"a", 0).await;
    flush().await.expect("no restart");
    // A lost connection is no restart.
    write(&objects, object, b"b", 0).await;
    relay.cut();
    flush().await.expect("no restart");
    write(&objects, object, b"c", 0).await;
    drive.unit.boot_epoch.store(2, Ordering::Relaxed);
    relay.cut();
    let mut failures = 0;
    for _ in 0..3 {
        failures += u32::from(matches!(flush().await, Err(ObjectError::ChangesMayBeLost)));
    }
    assert_eq!(failures, 1, "each loss is reported once");
    write(&objects, object, b"d", 0).await;
    flush().await.expect("nothing is lost");
}

#[tokio::test]
async fn a_change_with_fua_is_not_lost_in_a_restart_and_a_created_object_is_flushed_by_name() {
    let drive = Drive::start(true).await;
    let relay = Relay::start(drive.address).await;
    let mut settings = Drive::settings(relay.address);
    // At level 2 the session would survive its connection, and the restart is only simulated.
    settings.error_recovery_level = 0;
    let credential = owner(SecurityMethod::CmdRsp);
    let objects = RemoteObjects::connect(settings, credential, None).await.unwrap();
    let object = object(&objects).await;
    let everything = FlushScope::RangeOrEverything;
    request(&objects, Command::FlushOsd { scope: everything }).await.expect("no restart");
    // Neither of these two changes is unflushed at the restart.
    let command = Command::Write { object, length: 1, start: 0 };
    let write = ObjectRequest::new(command).with_data(Data::from(b"a".to_vec()));
    objects.request(write.with_fua()).await.expect("a write");
    let create = Command::Create { partition: PARTITION, requested: 0, count: 1 };
    let created = request(&objects, create).await.expect("an object").current.object;
    let (scope, length, start) = (FlushScope::ContentOrList, 0, 0);
    let flush = Command::Flush { object: created, scope, length, start };
    request(&objects, flush).await.expect("no restart");
    drive.unit.boot_epoch.store(2, Ordering::Relaxed);
    relay.cut();
    request(&objects, Command::FlushOsd { scope: everything }).await.expect("nothing is lost");
}

#[tokio::test]
async fn the_reply_to_a_create_that_was_looked_up_has_all_objects_and_attributes() {
    let drive = Drive::start(true).await;
    let relay = Relay::start(drive.address).await;
    let mut settings = Drive::settings(relay.address);
    settings.error_recovery_level = 0;
    let credential = owner(SecurityMethod::CmdRsp);
    let objects = RemoteObjects::connect(settings, credential, None).await.unwrap();
    object(&objects).await;
    drive.unit.stop_at(ServiceAction::Create, StopAt::End);
    let create = Command::Create { partition: PARTITION, requested: 0, count: 3 };
    let create = ObjectRequest::new(create).getting(AttributeSelection::One(LENGTH));
    let cut = async {
        drive.unit.stopped.notified().await;
        relay.cut();
    };
    let (created, ()) = tokio::join!(objects.request(create), cut);
    let created = created.unwrap();
    let first = created.current.object.object;
    let ids: Vec<_> = created.members.iter().map(|member| member.id).collect();
    assert_eq!(ids, [first, first + 1, first + 2]);
    assert_eq!(created.attributes[0].value[..], [0; 8]);
}

#[tokio::test]
async fn a_disk_is_no_object_drive_and_an_object_drive_is_no_disk() {
    let drive = Drive::start(false).await;
    let error = RemoteVolume::connect(Drive::settings(drive.address)).await.err().unwrap();
    assert!(
        matches!(&error, Error::Unit(_)) && error.to_string().contains("not a disk"),
        "{error}"
    );
    let node = crate::support::node::Node::start(volume::Geometry::with_blocks(1024)).await;
    let connected = RemoteObjects::connect(node.settings(), Credential::None, None).await;
    let error = connected.err().unwrap().to_string();
    assert!(error.contains("not an object drive"), "{error}");
    let units = initiator::list_units(&Drive::settings(drive.address)).await.unwrap();
    let facts = units[0].facts.as_ref().unwrap();
    assert_eq!(facts.object_drive.as_ref().unwrap().system_id, Some(SYSTEM));
}
