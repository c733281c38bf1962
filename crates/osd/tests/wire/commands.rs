//! One command of each service action, with its bytes 8 to 51 as OSD-2 places the fields.

use object::{
    Command, CopyMethod, FlushScope, KeyToSet, ListOrder, ListRequest, MapType, ObjectAddress,
    SetKeyRequest,
};

pub const PARTITION: u64 = 0x1_0000;
pub const OBJECT: ObjectAddress = ObjectAddress::new(PARTITION, 0x1_0001);
const REQUESTED: u64 = 0x1_0007;

/// A command, and bytes 8 to 51 of its CDB in hexadecimal digits, without attributes.
pub type GoldenCommand = (Command, &'static str);

/// Returns at least one command of each service action, ascending by code.
pub fn all() -> Vec<GoldenCommand> {
    [contents(), collections_and_keys(), copies_and_maps()].concat()
}

/// Returns commands on the root, on partitions and on the contents of user objects.
#[rustfmt::skip]
fn contents() -> Vec<GoldenCommand> {
    let (object, partition, requested) = (OBJECT, PARTITION, REQUESTED);
    let (length, start) = (4096, 512);
    let list = LIST;
    vec![
        (Command::ObjectStructureCheck { object },
         "8880 003000000000 0000000000010000 0000000000010001 0000000000000000 0000000000000000 00000000"),
        (Command::FormatOsd { capacity: 1 << 40 },
         "8881 003000000000 0000000000000000 0000000000000000 0000010000000000 0000000000000000 00000000"),
        (Command::Create { partition, requested, count: 3 },
         "8882 003000000000 0000000000010000 0000000000010007 0003000000000000 0000000000000000 00000000"),
        (Command::List { partition, list },
         "8883 007000000000 0000000000010000 0000000000000000 0000000000000200 0000000000010003 0000004d"),
        (Command::Punch { object, length, start },
         "8884 003000000000 0000000000010000 0000000000010001 0000000000001000 0000000000000200 00000000"),
        (Command::Read { object, length, start },
         "8885 003000000000 0000000000010000 0000000000010001 0000000000001000 0000000000000200 00000000"),
        (Command::Write { object, length, start },
         "8886 003000000000 0000000000010000 0000000000010001 0000000000001000 0000000000000200 00000000"),
        (Command::Append { object, length },
         "8887 003000000000 0000000000010000 0000000000010001 0000000000001000 0000000000000000 00000000"),
        (Command::Flush { object, scope: FlushScope::RangeOrEverything, length, start },
         "8888 023000000000 0000000000010000 0000000000010001 0000000000001000 0000000000000200 00000000"),
        (Command::Clear { object, length, start },
         "8889 003000000000 0000000000010000 0000000000010001 0000000000001000 0000000000000200 00000000"),
        (Command::Remove { object },
         "888a 003000000000 0000000000010000 0000000000010001 0000000000000000 0000000000000000 00000000"),
        (Command::CreatePartition { requested: 0x1717_1717 },
         "888b 003000000000 0000000017171717 0000000000000000 0000000000000000 0000000000000000 00000000"),
        (Command::RemovePartition { partition: 0x1717_1717, with_contents: true },
         "888c 003100000000 0000000017171717 0000000000000000 0000000000000000 0000000000000000 00000000"),
        (Command::GetAttributes { object },
         "888e 003000000000 0000000000010000 0000000000010001 0000000000000000 0000000000000000 00000000"),
        (Command::SetAttributes { object },
         "888f 003000000000 0000000000010000 0000000000010001 0000000000000000 0000000000000000 00000000"),
        (Command::CreateAndWrite { partition, requested, length, start },
         "8892 003000000000 0000000000010000 0000000000010007 0000000000001000 0000000000000200 00000000"),
    ]
}

/// Returns commands on collections, SET KEY and the flushes.
#[rustfmt::skip]
fn collections_and_keys() -> Vec<GoldenCommand> {
    let (collection, partition, requested) = (OBJECT, PARTITION, REQUESTED);
    let method = CopyMethod(1);
    let key_identifier = [1, 2, 3, 4, 5, 6, 7];
    let seed = *b"abcdefghijklmnopqrst";
    let set_key = |key| Command::SetKey(SetKeyRequest { key, key_identifier, seed });
    vec![
        (Command::CopyUserObjects { partition, requested, method },
         "8893 003000000100 0000000000010000 0000000000010007 0000000000000000 0000000000000000 00000000"),
        (Command::CreateUserTrackingCollection { partition, requested, source: 0x1_0009 },
         "8894 003000000000 0000000000010000 0000000000010007 0000000000000000 0000000000010009 00000000"),
        (Command::CreateCollection { partition, requested },
         "8895 003000000000 0000000000010000 0000000000010007 0000000000000000 0000000000000000 00000000"),
        (Command::RemoveCollection { collection, force: true },
         "8896 003100000000 0000000000010000 0000000000010001 0000000000000000 0000000000000000 00000000"),
        (Command::ListCollection { collection, list: LIST },
         "8897 007000000000 0000000000010000 0000000000010001 0000000000000200 0000000000010003 0000004d"),
        (set_key(KeyToSet::Root),
         "8898 003100000000 0000000000000000 0001020304050607 6162636465666768 696a6b6c6d6e6f70 71727374"),
        (set_key(KeyToSet::Partition { partition }),
         "8898 003200000000 0000000000010000 0001020304050607 6162636465666768 696a6b6c6d6e6f70 71727374"),
        (set_key(KeyToSet::Working { partition, version: 15 }),
         "8898 003300000000 0000000000010000 0f01020304050607 6162636465666768 696a6b6c6d6e6f70 71727374"),
        (Command::SetMasterKey { step: 1, key_identifier, parameter_list_length: 128, allocation_length: 256 },
         "8899 003100000000 0000000000000000 0001020304050607 0000008000000100 0000000000000000 00000000"),
        (Command::FlushCollection { collection, scope: FlushScope::AttributesOnly },
         "889a 013000000000 0000000000010000 0000000000010001 0000000000000000 0000000000000000 00000000"),
        (Command::FlushPartition { partition, scope: FlushScope::RangeOrEverything },
         "889b 023000000000 0000000000010000 0000000000000000 0000000000000000 0000000000000000 00000000"),
        (Command::FlushOsd { scope: FlushScope::AttributesOnly },
         "889c 013000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 00000000"),
        (Command::Query { collection, allocation_length: 512, matches: 0, immediate: false },
         "88a0 003000000000 0000000000010000 0000000000010001 0000000000000200 0000000000000000 00000000"),
        (Command::Query { collection, allocation_length: 0, matches: 0x1_0008, immediate: true },
         "88a0 00b000000000 0000000000010000 0000000000010001 0000000000000000 0000000000010008 00000000"),
        (Command::RemoveMemberObjects { collection },
         "88a1 003000000000 0000000000010000 0000000000010001 0000000000000000 0000000000000000 00000000"),
        (Command::GetMemberAttributes { collection },
         "88a2 003000000000 0000000000010000 0000000000010001 0000000000000000 0000000000000000 00000000"),
        (Command::SetMemberAttributes { collection },
         "88a3 003000000000 0000000000010000 0000000000010001 0000000000000000 0000000000000000 00000000"),
    ]
}

/// Copies of partitions, maps of objects, and commands in commands. The fields of the copies are
/// our own: `docs/protocols.md`, "Objects".
#[rustfmt::skip]
fn copies_and_maps() -> Vec<GoldenCommand> {
    let (object, partition, requested) = (OBJECT, PARTITION, REQUESTED);
    let (length, start, method) = (4096, 512, CopyMethod(1));
    let inner = *b"\x12\0\0\0\x24\0\0\0\0\0\0\0\0\0\0\0";
    vec![
        (Command::CreateClone { source: partition, requested, method },
         "88a8 003000000100 0000000000010000 0000000000010007 0000000000000000 0000000000000000 00000000"),
        (Command::CreateSnapshot { source: partition, requested, method },
         "88a9 003000000100 0000000000010000 0000000000010007 0000000000000000 0000000000000000 00000000"),
        (Command::DetachClone { clone: partition },
         "88aa 003000000000 0000000000010000 0000000000000000 0000000000000000 0000000000000000 00000000"),
        (Command::RefreshSnapshotOrClone { copy: partition },
         "88ab 003000000000 0000000000010000 0000000000000000 0000000000000000 0000000000000000 00000000"),
        (Command::RestorePartitionFromSnapshot { partition, snapshot: requested },
         "88ac 003000000000 0000000000010000 0000000000010007 0000000000000000 0000000000000000 00000000"),
        (Command::ReadMap { object, allocation_length: length, start, map_type: MapType::DamagedAttributes },
         "88b1 003000000000 0000000000010000 0000000000010001 0000000000001000 0000000000000200 80000000"),
        (Command::ReadMapsAndCompare { object, allocation_length: length, start },
         "88b2 003000000000 0000000000010000 0000000000010001 0000000000001000 0000000000000200 00000000"),
        (Command::PerformScsiCommand { cdb: inner },
         "8f7c 003000000000 0000000000000000 0000000000000000 1200000024000000 0000000000000000 00000000"),
        (Command::PerformTaskManagementFunction { function: 5, task_tag: 8 },
         "8f7d 003000000000 0000000000000000 0000000000000000 0000000000000005 0000000000000008 00000000"),
    ]
}

/// The part of a list that LIST and LIST COLLECTION request, with a different value in each field.
pub const LIST: ListRequest = ListRequest {
    allocation_length: 512,
    first: 0x1_0003,
    identifier: 77,
    with_attributes: true,
    order: ListOrder::Ascending,
};
