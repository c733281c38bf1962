//! Tests of CDBs, lists and continuation segments with invalid fields: the unit must refuse each with fitting sense
//! data, and change no object.

use object::{Attribute, Continuation, ScatterEntry};
use osd::{
    AttributeParameters, ContinuationSegment, ListInBuffer, ServiceAction, list,
    security::IntegrityCheckValue,
};

use super::*;

/// A unit without security. The store behind it counts the commands that reach it.
struct Refusing(Bench);

impl Refusing {
    async fn new() -> Self {
        Self(Bench::new(SecurityMethod::NoSec).await)
    }

    /// Checks that a command is refused with these ASC, ASCQ and field pointer, both when its data is requested and
    /// when it arrives at once.
    async fn expect(&self, cdb: &[u8], out: Vec<u8>, expected: (u8, u8, Option<u16>)) {
        for completion in
            [self.0.run(cdb, out.clone()).await, self.0.run_unsolicited(cdb, out).await]
        {
            assert_eq!(codes(&completion), Some(expected));
            assert!(completion.data_in.is_empty());
        }
        assert_eq!(self.0.unit.store().performed(), 0, "the store saw the command");
    }

    async fn list(&self, list: Vec<u8>, expected: (u8, u8, Option<u16>)) {
        let mut cdb = OsdCdb::new(Command::SetAttributes { object: OBJECT });
        let set = Some(ListInBuffer { length: list.len() as u32, offset: 0 });
        cdb.attributes = AttributeParameters::Lists { get: None, retrieved: None, set };
        self.expect(&cdb.encode(), list, expected).await;
    }

    async fn segment(&self, command: Command, segment: Vec<u8>, expected: (u8, u8, Option<u16>)) {
        let mut cdb = OsdCdb::new(command);
        cdb.continuation_length = segment.len() as u32;
        self.expect(&cdb.encode(), segment, expected).await;
    }
}

const INVALID_LIST: (u8, u8, Option<u16>) = (0x26, 0x00, None);
const SHORT_LIST: (u8, u8, Option<u16>) = (0x1a, 0x00, None);

fn segment(service_action: ServiceAction, continuation: Continuation) -> Vec<u8> {
    let integrity = IntegrityCheckValue::ZERO;
    ContinuationSegment { service_action, integrity, continuation }.encode()
}

fn read(length: u64, start: u64) -> Command {
    Command::Read { object: OBJECT, length, start }
}

#[tokio::test]
async fn cdbs_of_other_lengths_and_of_osd_1_are_refused() {
    let unit = Refusing::new().await;
    let cdb = OsdCdb::new(read(0, 0)).encode();
    let unknown = (0x20, 0x00, None);
    for length in [0, 6, 9] {
        let completion = unit.0.run(&cdb[..length], Vec::new()).await;
        assert!(completion.sense.is_some(), "{length} bytes");
    }
    for length in [16, 200, 235] {
        unit.expect(&cdb[..length], Vec::new(), (0x24, 0x00, Some(7))).await;
    }
    let long = [&cdb[..], &[0; 4]].concat();
    unit.expect(&long, Vec::new(), (0x24, 0x00, Some(7))).await;
    for code in (0x8801..=0x881c_u16).chain([0x888d, 0x8890, 0x8891, 0x88a5, 0x8f7e, 0x8f80]) {
        let mut osd_1 = cdb;
        osd_1[8..10].copy_from_slice(&code.to_be_bytes());
        unit.expect(&osd_1, Vec::new(), unknown).await;
    }
    let mut osd_1 = [0; 200];
    osd_1.copy_from_slice(&cdb[..200]);
    osd_1[7] = 0xc0;
    osd_1[8..10].copy_from_slice(&[0x88, 0x05]);
    unit.expect(&osd_1, Vec::new(), unknown).await;
    for action in [ServiceAction::SetMasterKey, ServiceAction::PerformTaskManagementFunction] {
        let mut unserved = cdb;
        unserved[8..10].copy_from_slice(&(action as u16).to_be_bytes());
        unit.expect(&unserved, Vec::new(), unknown).await;
    }
}

#[tokio::test]
async fn exponents_that_lie_are_refused() {
    let unit = Refusing::new().await;
    for (at, field) in [(56, 56), (64, 64), (72, 72), (228, 228), (232, 232)] {
        let mut cdb = OsdCdb::new(Command::GetAttributes { object: OBJECT });
        cdb.attributes = AttributeParameters::Lists {
            get: Some(ListInBuffer { length: 16, offset: 0 }),
            retrieved: Some(osd::Space { offset: 0, allocation_length: 64 }),
            set: Some(ListInBuffer { length: 24, offset: 16 }),
        };
        let mut cdb = cdb.encode();
        cdb[at..at + 4].copy_from_slice(&0x8000_0001u32.to_be_bytes());
        unit.expect(&cdb, vec![0; 40], (0x24, 0x00, Some(field))).await;
    }
}

#[tokio::test]
async fn lists_whose_offsets_overlap_or_are_beyond_the_data_are_refused() {
    let unit = Refusing::new().await;
    let mut cdb = OsdCdb::new(Command::Write { object: OBJECT, length: 16, start: 0 });
    let set = |offset| AttributeParameters::Lists {
        get: None,
        retrieved: None,
        set: Some(ListInBuffer { length: 24, offset }),
    };
    cdb.attributes = set(8);
    unit.expect(&cdb.encode(), vec![0; 40], (0x24, 0x00, Some(72))).await;
    for offset in [24, 1 << 20, 1 << 42] {
        cdb.attributes = set(offset);
        unit.expect(&cdb.encode(), vec![0; 40], SHORT_LIST).await;
    }
    cdb.attributes = AttributeParameters::NONE;
    unit.expect(&cdb.encode(), vec![0; 15], SHORT_LIST).await;
}

#[tokio::test]
async fn lists_of_another_type_or_with_wrong_lengths_are_refused() {
    let unit = Refusing::new().await;
    let good = list::encode_attributes(&[Attribute::new(1, 9, vec![1; 8])]);
    let changed = |at: usize, value: u8| {
        let mut list = good.clone();
        list[at] = value;
        list
    };
    unit.list(changed(0, 0x1), INVALID_LIST).await;
    unit.list(changed(0, 0xe), INVALID_LIST).await;
    unit.list(changed(7, 200), SHORT_LIST).await;
    unit.list(changed(4, 0xff), SHORT_LIST).await;
    unit.list(changed(23, 200), SHORT_LIST).await;
    unit.list(good[..24].to_vec(), SHORT_LIST).await;
    let mut longest = changed(22, 0xff);
    longest[23] = 0xff;
    unit.list(longest, INVALID_LIST).await;
    let many: Vec<_> = (0..1_025).map(|number| Attribute::new(1, number, Vec::new())).collect();
    unit.list(list::encode_attributes(&many), SHORT_LIST).await;
    let mut too_long = OsdCdb::new(Command::SetAttributes { object: OBJECT });
    let set = Some(ListInBuffer { length: (64 << 10) + 8, offset: 0 });
    too_long.attributes = AttributeParameters::Lists { get: None, retrieved: None, set };
    let bytes = vec![0; (64 << 10) + 8];
    unit.expect(&too_long.encode(), bytes, (0x24, 0x00, Some(68))).await;
}

#[tokio::test]
async fn continuation_segments_of_another_command_are_refused() {
    let unit = Refusing::new().await;
    let ranges = Continuation::ScatterGather(vec![ScatterEntry { start: 0, length: 10 }]);
    let write = segment(ServiceAction::Write, ranges.clone());
    unit.segment(read(10, 0), write, INVALID_LIST).await;
    let query = object::Query { match_type: object::QueryMatch::Any, criteria: Vec::new() };
    let query = segment(ServiceAction::Read, Continuation::Query(query));
    unit.segment(read(10, 0), query, INVALID_LIST).await;
    let good = segment(ServiceAction::Read, ranges);
    for (at, value) in [(0, 2), (40, 0xff)] {
        let mut lying = good.clone();
        lying[at] = value;
        unit.segment(read(10, 0), lying, INVALID_LIST).await;
    }
    for (at, value) in [(47, 0x80), (43, 1)] {
        let mut long = good.clone();
        long[at] = value;
        unit.segment(read(10, 0), long, SHORT_LIST).await;
    }
    let mut cdb = OsdCdb::new(Command::Remove { object: OBJECT }).encode();
    cdb[48..52].copy_from_slice(&64u32.to_be_bytes());
    unit.expect(&cdb, good.clone(), (0x24, 0x00, Some(48))).await;
    let mut cdb = OsdCdb::new(read(10, 0)).encode();
    for length in [8u32, 40, 60] {
        cdb[48..52].copy_from_slice(&length.to_be_bytes());
        unit.expect(&cdb, good.clone(), (0x24, 0x00, Some(48))).await;
    }
}

#[tokio::test]
async fn ranges_that_wrap_or_differ_from_the_length_are_refused() {
    let unit = Refusing::new().await;
    let ranges = |entries: &[(u64, u64)]| {
        let entry = |(start, length): &(u64, u64)| ScatterEntry { start: *start, length: *length };
        let entries = entries.iter().map(entry).collect();
        segment(ServiceAction::Read, Continuation::ScatterGather(entries))
    };
    let length = (0x24, 0x00, Some(32));
    unit.segment(read(10, 0), ranges(&[(0, 4), (100, 5)]), length).await;
    unit.segment(read(10, 0), ranges(&[(u64::MAX, 10)]), length).await;
    unit.segment(read(9, 0), ranges(&[(0, u64::MAX), (0, 10)]), length).await;
    unit.segment(read(10, 8), ranges(&[(0, 10)]), (0x24, 0x00, Some(40))).await;
}

#[tokio::test]
async fn settings_of_the_unit_cannot_be_set_as_attributes() {
    let bench = Bench::new(SecurityMethod::NoSec).await;
    let mut cdb = OsdCdb::new(Command::SetAttributes { object: ObjectAddress::ROOT });
    let id = object::AttributeId::new(0x9000_0005, 1);
    cdb.attributes = AttributeParameters::SetOne { id, length: 1, value: [0; 18] };
    let refused = bench.run(&cdb.encode(), Vec::new()).await;
    assert_eq!(codes(&refused), Some((0x26, 0x00, None)));
    assert_eq!(refused.object_sense.unwrap().attributes, [(0x9000_0005, 1)]);
    assert_eq!(bench.unit.store().performed(), 0);
}

#[tokio::test]
async fn set_key_without_a_key_above_it_is_refused() {
    let bench = Bench::empty(SecurityMethod::CmdRsp).await;
    let partition = ObjectAddress::partition(PARTITION);
    let command = Command::SetKey(set_key(KeyToSet::Partition { partition: PARTITION }, 1));
    let (all, method) = (Permissions(u16::MAX), SecurityMethod::CmdRsp);
    let capability = Capability::for_object(partition, ObjectType::Partition, all, method);
    let signer = master().authentication;
    let signed = bench.signed_with(bench.cdb(command), &capability, &signer);
    let refused = bench.run(&signed.bytes, Vec::new()).await;
    assert_eq!(codes(&refused), Some((0x24, 0x00, Some(184))));
}

#[tokio::test]
async fn random_bytes_never_reach_the_store_of_a_unit_with_security() {
    let bench = Bench::new(SecurityMethod::CapKey).await;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    let good = bench.signed(bench.cdb(read(0, 0)), &bench.capability(Permissions(u16::MAX)));
    for round in 0..4_000 {
        let mut cdb = good.bytes;
        for _ in 0..=round % 40 {
            cdb[9 + usize::from(random()) % 227] = random();
        }
        let out = (0..usize::from(random())).map(|_| random()).collect();
        let completion = bench.run_unsolicited(&cdb, out).await;
        assert!(cdb == good.bytes || completion.status != ScsiStatus::Good, "round {round}");
    }
    assert_eq!(bench.unit.store().performed(), 0);
}
