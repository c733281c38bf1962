//! Requests of libosd, the initiator that Linux had until version 5.1.

use bytes::Bytes;
use object::{AttributeId, AttributeSelection, Command, Continuation, ObjectAddress, ScatterEntry};
use osd::{
    AttributeParameters, ContinuationSegment, ListInBuffer, OsdCdb, ServiceAction, Space, list,
};

use crate::golden::unhex;

/// The first 80 of 104 bytes of libosd's capability, which has the format of OSD-1: method NOSEC,
/// permissions FFE0h, an object of this type with this type of descriptor.
fn capability(object_type: u8, descriptor_type: u8, partition: u64) -> String {
    let zeros = |bytes| "00".repeat(bytes);
    let permissions = format!("{object_type:02x} ffe0 {}", zeros(4));
    let descriptor = format!("{:02x} {} {partition:016x}", descriptor_type << 4, zeros(16));
    format!("01 {} {permissions} {descriptor}", zeros(47))
}

/// Returns a CDB with these bytes 8 to 79. The rest is as libosd writes it: no integrity check
/// value, and zeros as the offsets of the integrity information.
fn cdb(fields: &str, capability: &str) -> Vec<u8> {
    let mut cdb = unhex(&format!("7f000000000000e4 {fields} {capability}"));
    assert_eq!(cdb.len(), 160);
    cdb.resize(236, 0);
    cdb
}

#[test]
fn the_first_request_of_libosd_reads_the_root_attributes() {
    let fields = "888e 003000000000 0000000000000000 0000000000000000 \
        0000000000000000 0000000000000000 00000000 \
        00000060 00000000 000001b0 00000000 00000000 ffffffff 00000000";
    let parsed = OsdCdb::parse(&cdb(fields, &capability(1, 2, 0))).expect("a CDB of OSD-2");
    assert_eq!(parsed.command, Command::GetAttributes { object: ObjectAddress::ROOT });
    let get = ListInBuffer { length: 96, offset: 0 };
    let retrieved = Space { offset: 0, allocation_length: 432 };
    let lists =
        AttributeParameters::Lists { get: Some(get), retrieved: Some(retrieved), set: None };
    assert_eq!(parsed.attributes, lists);
    assert_eq!(parsed.capability(), Ok(None), "a capability of OSD-1 counts as none");

    // Like libosd, leave the length in the header of the list zero.
    let numbers = [4u32, 5, 6, 7, 8, 9, 0x80, 0x81, 0xc0, 0x100, 3];
    let entries = numbers.map(|number| format!("90000001 {number:08x}"));
    let data_out = unhex(&format!("01000000 00000000 {}", entries.join(" ")));
    let selections = numbers.map(|number| {
        let id = AttributeId::new(0x9000_0001, number);
        AttributeSelection::One(id)
    });
    assert_eq!(list::parse_selections(&data_out, 11), Ok(selections.to_vec()));
    // Our list differs from that of libosd only in the length in its header.
    let mut ours = list::encode_selections(&selections);
    ours[4..8].fill(0);
    assert_eq!(ours, data_out);
}

#[test]
fn a_scatter_gather_write_of_libosd_has_its_data_right_after_the_segment() {
    let fields = "8886 003000000000 0000000017171717 0000000000010001 \
        0000000000001000 0000000000000000 00000070 \
        00000000 ffffffff 00000000 ffffffff 00000000 ffffffff 00000000";
    let parsed =
        OsdCdb::parse(&cdb(fields, &capability(0x80, 1, 0x1717_1717))).expect("a CDB of OSD-2");
    let object = ObjectAddress::new(0x1717_1717, 0x1_0001);
    assert_eq!(parsed.command, Command::Write { object, length: 4096, start: 0 });
    assert_eq!(parsed.continuation_length, 112);

    let segment = unhex(
        "0100 8886 00000000 \
        0000000000000000 0000000000000000 0000000000000000 0000000000000000 \
        0001 0000 00000040 \
        0000000000000000 0000000000000400 0000000000002000 0000000000000400 \
        0000000000001000 0000000000000400 0000000000100000 0000000000000400",
    );
    assert_eq!(segment.len(), 112);
    let ranges = [0, 0x2000, 0x1000, 0x10_0000].map(|start| ScatterEntry { start, length: 1024 });
    let bytes = Bytes::from(segment);
    let read = ContinuationSegment::parse(&bytes, ServiceAction::Write, 4).expect("a segment");
    assert_eq!(read.continuation, Continuation::ScatterGather(ranges.to_vec()));
    assert_eq!(read.encode(), bytes);
}

#[test]
fn a_write_of_libosd_has_its_lists_behind_the_data() {
    let fields = "8886 003000000000 0000000017171717 0000000000010001 \
        0000000000001000 0000000000000000 00000000 \
        00000018 b0000209 00000038 00000000 00000048 b0000200 00000000";
    let parsed =
        OsdCdb::parse(&cdb(fields, &capability(0x80, 1, 0x1717_1717))).expect("a CDB of OSD-2");
    let lists = AttributeParameters::Lists {
        get: Some(ListInBuffer { length: 24, offset: 4168 }),
        retrieved: Some(Space { offset: 0, allocation_length: 56 }),
        set: Some(ListInBuffer { length: 72, offset: 4096 }),
    };
    assert_eq!(parsed.attributes, lists);

    let set = unhex(
        "09000000 00000000 \
        00000002 00000001 000000000000 0008 0000000000010000 \
        00000001 00000009 000000000000 0016 7573657220312c206f626a656374206f6e65203132330000",
    );
    assert_eq!(set.len(), 72);
    let set = list::parse_attributes(&Bytes::from(set), 2).expect("two attributes");
    assert_eq!(set[0].id, AttributeId::new(2, 1));
    assert_eq!(set[0].value[..], 0x1_0000u64.to_be_bytes());
    assert_eq!(set[1].id, AttributeId::new(1, 9));
    assert_eq!(&set[1].value[..], b"user 1, object one 123");
}
