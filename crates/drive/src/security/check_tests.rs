//! Tests that each check refuses its own kind of invalid command, and that a valid command passes.

use object::{CopyMethod, CopySource, KeyToSet, ListRequest, ObjectError, ObjectStore};
use object::{ScatterEntry, Timestamp};
use osd::{
    AllowedRange, ContinuationSegment, ServiceAction,
    security::{Algorithm, CODE_BYTES},
};

use super::*;
use crate::testing::{
    MemoryStore, PARTITION, POLICY_TAG, SYSTEM, SignedCdb, TestTime, master, set_key, sign,
    working_pair,
};

const OBJECT: ObjectAddress = ObjectAddress::new(PARTITION, 0x1_0001);
const TOKEN: [u8; 16] = [9; 16];
const VERSION: u8 = 5;

struct Drive {
    store: MemoryStore,
    time: TestTime,
    security: Security,
    random: std::cell::Cell<u8>,
}

impl Drive {
    async fn new(least: SecurityMethod) -> Self {
        let store = MemoryStore::with_partition(PARTITION);
        store.add(OBJECT, ObjectType::UserObject);
        let time = TestTime::new(1_000_000);
        let security = open(&store, &time, least).await;
        for key in [
            KeyToSet::Root,
            KeyToSet::Partition { partition: PARTITION },
            KeyToSet::Working { partition: PARTITION, version: VERSION },
        ] {
            security.keys().set_key(&store, &set_key(key, 0xa0)).await.unwrap();
        }
        Self { store, time, security, random: std::cell::Cell::new(0) }
    }

    fn capability(&self) -> Capability {
        Capability {
            key_version: VERSION,
            ..Capability::for_object(
                OBJECT,
                ObjectType::UserObject,
                Permissions::READ,
                SecurityMethod::CmdRsp,
            )
        }
    }

    /// Returns a READ of 100 bytes with a nonce that was not used.
    fn read(&self) -> OsdCdb {
        self.random.set(self.random.get() + 1);
        let mut cdb = OsdCdb::new(Command::Read { object: OBJECT, length: 100, start: 50 });
        cdb.nonce = Nonce { time: self.security.clock().now(), random: [self.random.get(); 6] };
        cdb
    }

    fn signed(&self, cdb: OsdCdb, capability: &Capability) -> SignedCdb {
        sign(cdb, capability, &working_pair().authentication, &TOKEN)
    }

    /// Makes all checks of a command without data, in the order in which a unit makes them.
    async fn check(&self, signed: &SignedCdb) -> Result<Proof, Refused> {
        let cdb = OsdCdb::parse(&signed.bytes).unwrap();
        let proof = self.security.prove(&self.store, &cdb, &signed.bytes, &TOKEN).await?;
        self.security.judge(&self.store, &cdb, &proof).await?;
        self.security.use_nonce(&proof, cdb.nonce)?;
        Ok(proof)
    }

    /// Checks a READ whose capability was changed by `change` before it was signed.
    async fn with(&self, change: impl Fn(&mut Capability)) -> Result<(), RefusedReason> {
        let mut capability = self.capability();
        change(&mut capability);
        reason(self.check(&self.signed(self.read(), &capability)).await)
    }
}

async fn open(store: &MemoryStore, time: &TestTime, least: SecurityMethod) -> Security {
    let clock = Arc::new(DriveClock::new(time.clone()));
    let settings = SecuritySettings::new(least, SYSTEM);
    Security::open(store, settings, Some(master()), clock).await.unwrap()
}

fn reason(checked: Result<Proof, Refused>) -> Result<(), RefusedReason> {
    match checked {
        Ok(_) => Ok(()),
        Err(Refused::Capability(reason, _)) => Err(reason),
        Err(Refused::Store(error)) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_command_with_a_valid_capability_passes_with_every_method_and_algorithm() {
    let drive = Drive::new(SecurityMethod::CapKey).await;
    for method in [SecurityMethod::CapKey, SecurityMethod::CmdRsp, SecurityMethod::AllData] {
        for algorithm in Algorithm::ALL {
            let capability = Capability { method, algorithm, ..drive.capability() };
            for _ in 0..2 {
                let proof = drive.check(&drive.signed(drive.read(), &capability)).await.unwrap();
                assert_eq!(proof.method, method);
            }
        }
    }
}

#[tokio::test]
async fn a_single_flipped_bit_of_a_signed_cdb_is_refused() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    let signed = drive.signed(drive.read(), &drive.capability());
    for bit in 0..CDB_BYTES * 8 {
        let mut bytes = signed.bytes;
        bytes[bit / 8] ^= 0x80 >> (bit % 8);
        let Ok(cdb) = OsdCdb::parse(&bytes) else { continue };
        let proved = drive.security.prove(&drive.store, &cdb, &bytes, &TOKEN).await;
        assert!(proved.is_err(), "bit {bit}");
    }
    assert!(drive.check(&signed).await.is_ok(), "the bits were the only reason");
}

#[tokio::test]
async fn a_capability_that_was_widened_after_it_was_signed_is_refused_with_every_method() {
    for method in [SecurityMethod::CapKey, SecurityMethod::CmdRsp, SecurityMethod::AllData] {
        let drive = Drive::new(SecurityMethod::CapKey).await;
        let capability = Capability { method, ..drive.capability() };
        let mut signed = drive.signed(drive.read(), &capability);
        signed.bytes[CAPABILITY + 49] |= 0x40;
        assert_eq!(reason(drive.check(&signed).await), Err(RefusedReason::Integrity));
    }
}

#[tokio::test]
async fn a_method_below_that_of_the_unit_is_refused() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    let with = |method| drive.with(move |capability| capability.method = method);
    assert_eq!(with(SecurityMethod::NoSec).await, Err(RefusedReason::Method));
    assert_eq!(with(SecurityMethod::CapKey).await, Err(RefusedReason::Method));
    assert_eq!(with(SecurityMethod::AllData).await, Ok(()));
    let none = SignedCdb {
        bytes: drive.read().encode(),
        ..drive.signed(drive.read(), &drive.capability())
    };
    assert_eq!(reason(drive.check(&none).await), Err(RefusedReason::Method), "no capability");
}

#[tokio::test]
async fn without_security_nothing_of_a_capability_is_checked() {
    let drive = Drive::new(SecurityMethod::NoSec).await;
    let mut signed = drive.signed(drive.read(), &drive.capability());
    for format in [0, 1, 2] {
        signed.bytes[CAPABILITY..CAPABILITY + 104].fill(0);
        signed.bytes[CAPABILITY] = format;
        // The initiator of Linux sends the permissions FFE0h, and zeros as object and range.
        signed.bytes[CAPABILITY + 49..CAPABILITY + 51].copy_from_slice(&[0xff, 0xe0]);
        let proof = drive.check(&signed).await.unwrap();
        assert!(proof.signed.is_none(), "format {format}");
    }
    assert_eq!(drive.with(|_| ()).await, Ok(()), "a client may sign nevertheless");
    assert_eq!(
        drive.with(|capability| capability.policy_tag = 7).await,
        Err(RefusedReason::PolicyTag)
    );
}

#[tokio::test]
async fn a_capability_under_another_key_version_drive_or_session_is_refused() {
    let drive = Drive::new(SecurityMethod::CapKey).await;
    let other_version = drive.with(|capability| capability.key_version = 4).await;
    assert_eq!(other_version, Err(RefusedReason::Key), "a version that was never set");
    let request = set_key(KeyToSet::Working { partition: PARTITION, version: 4 }, 1);
    drive.security.keys().set_key(&drive.store, &request).await.unwrap();
    let other_version = drive.with(|capability| capability.key_version = 4).await;
    assert_eq!(other_version, Err(RefusedReason::Integrity), "signed with key 5");
    let mut signed = drive.signed(drive.read(), &drive.capability());
    let bytes = signed.cdb.capability;
    let pair = working_pair();
    let key = CapabilityKey::new(Algorithm::HmacSha256, &pair.authentication, &bytes, &[1; 20]);
    signed.cdb.integrity = key.of_cdb(&signed.bytes);
    signed.bytes = signed.cdb.encode();
    assert_eq!(reason(drive.check(&signed).await), Err(RefusedReason::Integrity), "other drive");
    let capability = Capability { method: SecurityMethod::CapKey, ..drive.capability() };
    let signed = sign(drive.read(), &capability, &pair.authentication, &[1; 16]);
    assert_eq!(reason(drive.check(&signed).await), Err(RefusedReason::Integrity), "other session");
}

#[tokio::test]
async fn a_new_key_ends_the_capabilities_under_the_former_one() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    let proof = drive.check(&drive.signed(drive.read(), &drive.capability())).await.unwrap();
    assert!(drive.security.is_current(&proof));
    let request = set_key(KeyToSet::Working { partition: PARTITION, version: VERSION }, 1);
    drive.security.keys().set_key(&drive.store, &request).await.unwrap();
    assert!(!drive.security.is_current(&proof), "an admitted command is proved again");
    assert_eq!(drive.with(|_| ()).await, Err(RefusedReason::Integrity));
}

#[tokio::test]
async fn an_expired_capability_stays_expired_when_the_clock_of_the_host_is_set_back() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    let expires =
        |ms| move |capability: &mut Capability| capability.expiration = Timestamp::from_ms(ms);
    assert_eq!(drive.with(expires(1_020_000)).await, Ok(()));
    drive.time.advance(21_000);
    assert_eq!(drive.with(expires(1_020_000)).await, Err(RefusedReason::Expired));
    drive.time.set_wall(0);
    assert_eq!(drive.with(expires(1_020_000)).await, Err(RefusedReason::Expired));
    let restarted =
        Drive { security: open(&drive.store, &drive.time, SecurityMethod::CmdRsp).await, ..drive };
    assert_eq!(restarted.with(expires(1_020_000)).await, Err(RefusedReason::Expired));
    assert_eq!(restarted.with(expires(2_000_000)).await, Ok(()));
}

#[tokio::test]
async fn a_nonce_is_valid_once_and_not_after_a_restart() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    let signed = drive.signed(drive.read(), &drive.capability());
    assert_eq!(reason(drive.check(&signed).await), Ok(()));
    assert_eq!(reason(drive.check(&signed).await), Err(RefusedReason::NonceRepeated));
    // Sign a command for the latest nonce time that the drive accepts.
    let mut cdb = drive.read();
    cdb.nonce.time = drive.security.window().newest;
    let future = drive.signed(cdb, &drive.capability());
    assert_eq!(reason(drive.check(&future).await), Ok(()));
    let restarted =
        Drive { security: open(&drive.store, &drive.time, SecurityMethod::CmdRsp).await, ..drive };
    for signed in [signed, future] {
        assert_eq!(reason(restarted.check(&signed).await), Err(RefusedReason::NonceTime));
    }
}

#[tokio::test]
async fn a_nonce_that_is_too_old_or_from_the_future_is_refused() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    drive.time.advance(20_000);
    let window = drive.security.window();
    for (ms, expected) in [
        (window.oldest.as_ms() - 1, Err(RefusedReason::NonceTime)),
        (window.oldest.as_ms(), Ok(())),
        (window.newest.as_ms(), Ok(())),
        (window.newest.as_ms() + 1, Err(RefusedReason::NonceTime)),
        (0, Err(RefusedReason::NonceTime)),
    ] {
        let mut cdb = drive.read();
        cdb.nonce.time = Timestamp::from_ms(ms);
        let signed = drive.signed(cdb, &drive.capability());
        assert_eq!(reason(drive.check(&signed).await), expected, "{ms}");
    }
}

#[tokio::test]
async fn commands_without_the_capability_key_leave_no_nonce_behind() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    let signed = drive.signed(drive.read(), &drive.capability());
    let mut forged = signed.clone();
    forged.bytes[INTEGRITY] ^= 1;
    assert_eq!(reason(drive.check(&forged).await), Err(RefusedReason::Integrity));
    assert!(drive.security.nonces.is_empty());
    assert_eq!(reason(drive.check(&signed).await), Ok(()), "the right command is not shut out");
}

#[tokio::test]
async fn a_capability_for_another_object_type_range_or_permission_is_refused() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    let object = |id| move |capability: &mut Capability| capability.object.object = id;
    assert_eq!(drive.with(object(0x1_0002)).await, Err(RefusedReason::Object));
    assert_eq!(drive.with(object(0)).await, Err(RefusedReason::Object));
    let other = |capability: &mut Capability| capability.object.partition += 1;
    assert_eq!(drive.with(other).await, Err(RefusedReason::Object));
    let collection = |capability: &mut Capability| capability.object_type = ObjectType::Collection;
    assert_eq!(drive.with(collection).await, Err(RefusedReason::Object));
    let range = |start, length| {
        move |capability: &mut Capability| capability.range = AllowedRange { start, length }
    };
    assert_eq!(drive.with(range(50, 100)).await, Ok(()));
    assert_eq!(drive.with(range(51, 99)).await, Err(RefusedReason::Range));
    assert_eq!(drive.with(range(50, 99)).await, Err(RefusedReason::Range));
    let write = |capability: &mut Capability| capability.permissions = Permissions::WRITE;
    assert_eq!(drive.with(write).await, Err(RefusedReason::Permissions));
}

#[tokio::test]
async fn a_range_that_wraps_around_is_refused() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    let mut cdb = drive.read();
    cdb.command = Command::Read { object: OBJECT, length: u64::MAX, start: 2 };
    let signed = drive.signed(cdb, &drive.capability());
    assert_eq!(reason(drive.check(&signed).await), Err(RefusedReason::Range));
}

#[tokio::test]
async fn created_time_policy_tag_and_boot_epoch_must_match_unless_they_are_zero() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    let created = drive.store.guard_facts(OBJECT).await.unwrap().created;
    let with = |created| move |capability: &mut Capability| capability.created = created;
    assert_eq!(drive.with(with(created)).await, Ok(()));
    let other = Timestamp::from_ms(created.as_ms() + 1);
    assert_eq!(drive.with(with(other)).await, Err(RefusedReason::CreatedTime));
    let tag = |tag| move |capability: &mut Capability| capability.policy_tag = tag;
    assert_eq!(drive.with(tag(7)).await, Err(RefusedReason::PolicyTag));
    let request = object::ObjectRequest::new(Command::SetAttributes { object: OBJECT })
        .setting(Attribute::new(5, POLICY_TAG, vec![0, 0, 0, 7]));
    drive.store.perform(request).await.unwrap();
    assert_eq!(drive.with(tag(7)).await, Ok(()));
    assert_eq!(drive.with(tag(6)).await, Err(RefusedReason::PolicyTag));
    let epoch = |epoch| move |capability: &mut Capability| capability.boot_epoch = epoch;
    assert_eq!(drive.with(epoch(1)).await, Ok(()));
    drive.store.restart();
    assert_eq!(drive.with(epoch(1)).await, Err(RefusedReason::BootEpoch));
}

#[tokio::test]
async fn frozen_keys_and_audits_are_refused() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    let object = ObjectAddress::partition(PARTITION);
    let set = |attribute| {
        object::ObjectRequest::new(Command::SetAttributes { object }).setting(attribute)
    };
    let audit = Attribute::new(super::super::FROZEN_AUDITS, 1, vec![3; 20]);
    drive.store.perform(set(audit)).await.unwrap();
    drive.security.keys().forget(PARTITION);
    let with = |audit| move |capability: &mut Capability| capability.audit = audit;
    assert_eq!(drive.with(with([3; 20])).await, Err(RefusedReason::Audit));
    assert_eq!(drive.with(with([4; 20])).await, Ok(()));
    let mask = Attribute::new(0x3000_0005, 5, vec![0, 1 << VERSION]);
    drive.store.perform(set(mask)).await.unwrap();
    drive.security.keys().forget(PARTITION);
    assert_eq!(drive.with(|_| ()).await, Err(RefusedReason::FrozenKey));
}

#[tokio::test]
async fn each_level_of_key_signs_its_own_commands_only() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    let seed = set_key(KeyToSet::Root, 0xa0).seed;
    let root = master().derive(&seed);
    let partition = root.derive(&seed);
    let keys = [master(), root, partition, working_pair()];
    let list = ListRequest::default();
    let cases = [
        (Command::SetKey(set_key(KeyToSet::Root, 1)), ObjectType::Root, 0),
        (Command::List { partition: 0, list }, ObjectType::Root, 1),
        (Command::List { partition: PARTITION, list }, ObjectType::Partition, 2),
        (Command::Read { object: OBJECT, length: 1, start: 0 }, ObjectType::UserObject, 3),
    ];
    for (command, object_type, level) in cases {
        for (number, pair) in keys.iter().enumerate() {
            let mut cdb = drive.read();
            cdb.command = command;
            let all = Permissions(u16::MAX);
            let mut capability =
                Capability::for_object(command.object(), object_type, all, SecurityMethod::CmdRsp);
            capability.key_version = VERSION;
            let signed = sign(cdb, &capability, &pair.authentication, &TOKEN);
            let checked = reason(drive.check(&signed).await);
            let expected = if number == level { Ok(()) } else { Err(RefusedReason::Integrity) };
            assert_eq!(checked, expected, "{command:?} with key {number}");
        }
    }
}

#[tokio::test]
async fn a_capability_for_creating_covers_neither_other_identifiers_nor_other_objects() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    let check = async |command: Command, object, object_type, permissions| {
        let mut cdb = drive.read();
        cdb.command = command;
        let mut capability =
            Capability::for_object(object, object_type, permissions, SecurityMethod::CmdRsp);
        capability.key_version = VERSION;
        reason(drive.check(&drive.signed(cdb, &capability)).await)
    };
    let (partition, create) = (PARTITION, Permissions::CREATE);
    let any = ObjectAddress::partition(PARTITION);
    let user = ObjectType::UserObject;
    let count = |requested, count| Command::Create { partition, requested, count };
    assert_eq!(check(count(0, 5), any, user, create).await, Ok(()));
    assert_eq!(check(count(0, 1), any, ObjectType::Partition, create).await, Ok(()));
    let new = ObjectAddress::new(PARTITION, 0x2_0000);
    assert_eq!(check(count(0x2_0000, 1), new, user, create).await, Ok(()));
    let many = check(count(0x2_0000, 2), new, user, create).await;
    assert_eq!(many, Err(RefusedReason::Object));
    let other = check(count(0x2_0001, 1), new, user, create).await;
    assert_eq!(other, Err(RefusedReason::Object));
    let collection = check(count(0x2_0000, 1), new, ObjectType::Collection, create).await;
    assert_eq!(collection, Err(RefusedReason::Object));
    let copy = Command::CopyUserObjects { partition, requested: 0, method: CopyMethod(0) };
    let both = create | Permissions::WRITE;
    assert_eq!(check(copy, any, user, both).await, Err(RefusedReason::Permissions));
    assert_eq!(check(copy, any, user, both | Permissions::GLOBAL).await, Ok(()));
    let append = Command::Append { object: OBJECT, length: 1 };
    assert_eq!(check(append, OBJECT, user, Permissions::APPEND).await, Ok(()));
    let limited = |capability: &mut Capability| {
        capability.permissions = Permissions::APPEND;
        capability.range = AllowedRange { start: 0, length: 1 << 20 };
    };
    let mut cdb = drive.read();
    cdb.command = append;
    let mut capability = drive.capability();
    limited(&mut capability);
    let appended = reason(drive.check(&drive.signed(cdb, &capability)).await);
    assert_eq!(appended, Err(RefusedReason::Range));
}

#[tokio::test]
async fn attributes_lists_need_their_permissions() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    let check = async |permissions, set: &[(u32, u32)], get: &[AttributeSelection]| {
        let mut capability = drive.capability();
        capability.permissions = Permissions::READ | permissions;
        let proof = drive.check(&drive.signed(drive.read(), &capability)).await.unwrap();
        let set: Vec<_> =
            set.iter().map(|(page, number)| Attribute::new(*page, *number, vec![1])).collect();
        drive.security.check_lists(&proof, &set, get).is_ok()
    };
    let none = Permissions::NONE;
    let (get, set) = (Permissions::GET_ATTRIBUTES, Permissions::SET_ATTRIBUTES);
    let security = Permissions::POLICY_SECURITY;
    let one = |page, number| [AttributeSelection::One(object::AttributeId::new(page, number))];
    assert!(check(none, &[], &[]).await);
    assert!(!check(get, &[(1, 9)], &[]).await);
    assert!(check(set, &[(1, 9)], &[]).await);
    assert!(!check(set, &[(1, 9), (5, POLICY_TAG)], &[]).await, "a security page");
    assert!(check(set | security, &[(5, POLICY_TAG)], &[]).await);
    assert!(!check(security, &[(5, POLICY_TAG)], &[]).await);
    assert!(!check(set, &[(super::super::FROZEN_AUDITS, 1)], &[]).await);
    assert!(check(none, &[(0xf001_0000, 1)], &[]).await, "a request tag");
    assert!(!check(none, &[(0xf001_0000, 2)], &[]).await);
    assert!(!check(set, &[], &one(1, 9)).await);
    assert!(check(get, &[], &one(1, 9)).await);
    assert!(check(none, &[], &one(object::CURRENT_COMMAND, 1)).await);
    assert!(!check(get, &[], &one(0x3000_0005, 5)).await);
    assert!(check(get | security, &[], &one(0x3000_0005, 5)).await);
    for all in [AttributeSelection::All, AttributeSelection::NumberInAllPages(POLICY_TAG)] {
        assert!(!check(get, &[], &[all]).await);
        assert!(check(get | security, &[], &[all]).await);
    }
    for page in [5, 0x3000_0005, 0x6000_0005, 0x9000_0005] {
        assert!(!check(get, &[], &[AttributeSelection::Page(page)]).await, "{page:X}h");
        assert!(!check(get, &[], &[AttributeSelection::PageFormat(page)]).await, "{page:X}h");
    }
}

#[tokio::test]
async fn altered_continuations_and_ranges_outside_of_the_capability_are_refused() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    let mut capability = drive.capability();
    capability.range = AllowedRange { start: 1_000, length: 1_000 };
    let mut cdb = drive.read();
    cdb.command = Command::Read { object: OBJECT, length: 20, start: 0 };
    cdb.continuation_length = 80;
    let signed = drive.signed(cdb, &capability);
    let proof = drive.check(&signed).await.expect("its ranges come with the data");
    let check = |continuation: Continuation, alters: bool| {
        let mut segment = ContinuationSegment {
            service_action: ServiceAction::Read,
            integrity: IntegrityCheckValue::ZERO,
            continuation,
        };
        segment.integrity = signed.key.of_continuation(cdb.nonce, &segment.encode());
        let mut bytes = segment.encode();
        bytes[8 + CODE_BYTES] ^= u8::from(alters);
        let bytes = Bytes::from(bytes);
        let (integrity, continuation) = (segment.integrity, &segment.continuation);
        drive.security.check_continuation(&proof, cdb.nonce, &bytes, integrity, continuation)
    };
    let ranges = |second: ScatterEntry| {
        Continuation::ScatterGather(vec![ScatterEntry { start: 1_000, length: 10 }, second])
    };
    let inside = ScatterEntry { start: 1_990, length: 10 };
    assert_eq!(check(ranges(inside), false), Ok(()));
    let altered = check(ranges(inside), true);
    assert!(matches!(altered, Err(Refused::Capability(RefusedReason::DataIntegrity, _))));
    for (start, length) in [(1_991, 10), (999, 10), (u64::MAX, 10), (1_500, u64::MAX)] {
        let outside = check(ranges(ScatterEntry { start, length }), false);
        let range = Refused::at(RefusedReason::Range, 40);
        assert_eq!(outside, Err(range), "{start}, {length}");
    }
    let elsewhere = ObjectAddress::new(PARTITION + 1, 0x1_0001);
    let source = |object| {
        let time = Timestamp::ZERO;
        let (with_attributes, freeze) = (false, false);
        Continuation::CopySource(CopySource { object, with_attributes, freeze, time })
    };
    assert_eq!(check(source(OBJECT), false), Ok(()));
    assert!(check(source(elsewhere), false).is_err());
    assert!(check(Continuation::UserObject(elsewhere), false).is_err());
}

#[tokio::test]
async fn a_missing_object_is_reported_only_to_a_client_with_its_capability() {
    let drive = Drive::new(SecurityMethod::CmdRsp).await;
    let object = ObjectAddress::new(PARTITION, 0x1_0009);
    let mut cdb = drive.read();
    cdb.command = Command::Read { object, length: 1, start: 0 };
    let capability = Capability { object, ..drive.capability() };
    let signed = drive.signed(cdb, &capability);
    let missing = drive.check(&signed).await.unwrap_err();
    assert_eq!(missing, Refused::Store(ObjectError::NoSuchObject { object }));
    let mut forged = signed;
    forged.bytes[INTEGRITY] ^= 1;
    assert_eq!(reason(drive.check(&forged).await), Err(RefusedReason::Integrity));
}
