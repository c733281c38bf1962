//! The fields of each command in bytes 10 to 51 of its CDB (OSD-2, 6).

use object::{
    Command, CopyMethod, FlushScope, KeyToSet, ListOrder, ListRequest, MapType, ObjectAddress,
    SetKeyRequest,
};

use crate::{
    bytes::{array_at, put, u16_at, u32_at, u64_at},
    refusal::Refusal,
    service_action::ServiceAction,
};

/// CDBFMT of commands without attributes: two empty lists.
pub(crate) const DEFAULT_FORMAT: u8 = 3;
/// Offset of CDB CONTINUATION LENGTH in the CDB.
pub(crate) const CONTINUATION_LENGTH: usize = 48;
/// Length in bytes of the smallest continuation segment: its header and one empty descriptor.
const MIN_CONTINUATION: u32 = 48;

const PARTITION: usize = 16;
const OBJECT: usize = 24;
const LENGTH: usize = 32;
const START: usize = 40;
/// Offset of TASK MANAGEMENT FUNCTION.
const FUNCTION: usize = 39;

/// Bits of byte 11 besides CDBFMT. LIST_ATTR: a list has attributes. IMMED_TR: QUERY is answered at
/// once. FORCE: a collection with members is removed.
const LIST_ATTR: u8 = 0x40;
const IMMED_TR: u8 = 0x80;
const FORCE: u8 = 0x01;

/// Parses the fields of a command in a CDB of 236 bytes.
///
/// # Errors
/// 5/24/00 with a pointer to a field that has a reserved value.
pub(crate) fn parse(action: ServiceAction, cdb: &[u8]) -> Result<Command, Refusal> {
    let long = |at| u64_at(cdb, at).unwrap_or_default();
    let object = ObjectAddress::new(long(PARTITION), long(OBJECT));
    let (length, start) = (long(LENGTH), long(START));
    Ok(match action {
        ServiceAction::Read => Command::Read { object, length, start },
        ServiceAction::Write => Command::Write { object, length, start },
        ServiceAction::Append => Command::Append { object, length },
        ServiceAction::Clear => Command::Clear { object, length, start },
        ServiceAction::Punch => Command::Punch { object, length, start },
        ServiceAction::Remove => Command::Remove { object },
        ServiceAction::GetAttributes => Command::GetAttributes { object },
        ServiceAction::SetAttributes => Command::SetAttributes { object },
        ServiceAction::ObjectStructureCheck => Command::ObjectStructureCheck { object },
        ServiceAction::Flush => Command::Flush { object, scope: parse_scope(cdb)?, length, start },
        ServiceAction::FlushCollection => {
            Command::FlushCollection { collection: object, scope: parse_scope(cdb)? }
        }
        ServiceAction::FlushPartition => {
            Command::FlushPartition { partition: object.partition, scope: parse_scope(cdb)? }
        }
        ServiceAction::FlushOsd => Command::FlushOsd { scope: parse_scope(cdb)? },
        ServiceAction::ReadMap => {
            let code = u16_at(cdb, CONTINUATION_LENGTH).unwrap_or_default();
            let map_type = MapType::from_code(code).ok_or(Refusal::field(48))?;
            Command::ReadMap { object, allocation_length: length, start, map_type }
        }
        ServiceAction::ReadMapsAndCompare => {
            Command::ReadMapsAndCompare { object, allocation_length: length, start }
        }
        ServiceAction::List => {
            Command::List { partition: object.partition, list: parse_list(cdb)? }
        }
        ServiceAction::ListCollection => {
            Command::ListCollection { collection: object, list: parse_list(cdb)? }
        }
        ServiceAction::RemoveCollection => {
            Command::RemoveCollection { collection: object, force: cdb[11] & FORCE != 0 }
        }
        ServiceAction::Query => parse_query(cdb, object)?,
        ServiceAction::RemoveMemberObjects => Command::RemoveMemberObjects { collection: object },
        ServiceAction::GetMemberAttributes => Command::GetMemberAttributes { collection: object },
        ServiceAction::SetMemberAttributes => Command::SetMemberAttributes { collection: object },
        ServiceAction::FormatOsd => Command::FormatOsd { capacity: length },
        ServiceAction::SetKey => Command::SetKey(parse_set_key(cdb)?),
        ServiceAction::SetMasterKey => Command::SetMasterKey {
            step: cdb[11] & 0x03,
            key_identifier: array_at(cdb, OBJECT + 1).unwrap_or_default(),
            parameter_list_length: u32_at(cdb, LENGTH).unwrap_or_default(),
            allocation_length: u32_at(cdb, LENGTH + 4).unwrap_or_default(),
        },
        ServiceAction::PerformScsiCommand => {
            Command::PerformScsiCommand { cdb: array_at(cdb, LENGTH).unwrap_or_default() }
        }
        ServiceAction::PerformTaskManagementFunction => {
            Command::PerformTaskManagementFunction { function: cdb[FUNCTION], task_tag: start }
        }
        _ => return parse_creation(action, cdb),
    })
}

/// Parses the fields of a command that creates, copies or removes partitions or objects.
fn parse_creation(action: ServiceAction, cdb: &[u8]) -> Result<Command, Refusal> {
    let long = |at| u64_at(cdb, at).unwrap_or_default();
    let (partition, requested) = (long(PARTITION), long(OBJECT));
    let (length, start) = (long(LENGTH), long(START));
    let method = CopyMethod(cdb[14]);
    Ok(match action {
        ServiceAction::CreatePartition => Command::CreatePartition { requested: partition },
        ServiceAction::RemovePartition => {
            let with_contents = match cdb[11] & 0x07 {
                0 => false,
                1 => true,
                _ => return Err(Refusal::field(11)),
            };
            Command::RemovePartition { partition, with_contents }
        }
        ServiceAction::Create => {
            let count = u16_at(cdb, LENGTH).unwrap_or_default().max(1);
            Command::Create { partition, requested, count }
        }
        ServiceAction::CreateAndWrite => {
            Command::CreateAndWrite { partition, requested, length, start }
        }
        ServiceAction::CopyUserObjects => Command::CopyUserObjects { partition, requested, method },
        ServiceAction::CreateCollection => Command::CreateCollection { partition, requested },
        ServiceAction::CreateUserTrackingCollection => {
            Command::CreateUserTrackingCollection { partition, requested, source: start }
        }
        ServiceAction::CreateClone => Command::CreateClone { source: partition, requested, method },
        ServiceAction::CreateSnapshot => {
            Command::CreateSnapshot { source: partition, requested, method }
        }
        ServiceAction::DetachClone => Command::DetachClone { clone: partition },
        ServiceAction::RefreshSnapshotOrClone => {
            Command::RefreshSnapshotOrClone { copy: partition }
        }
        ServiceAction::RestorePartitionFromSnapshot => {
            Command::RestorePartitionFromSnapshot { partition, snapshot: requested }
        }
        _ => return Err(Refusal::UnknownServiceAction),
    })
}

/// Returns the service action of a command.
#[must_use]
pub(crate) const fn service_action(command: &Command) -> ServiceAction {
    match command {
        Command::ObjectStructureCheck { .. } => ServiceAction::ObjectStructureCheck,
        Command::FormatOsd { .. } => ServiceAction::FormatOsd,
        Command::CreatePartition { .. } => ServiceAction::CreatePartition,
        Command::RemovePartition { .. } => ServiceAction::RemovePartition,
        Command::Create { .. } => ServiceAction::Create,
        Command::CreateAndWrite { .. } => ServiceAction::CreateAndWrite,
        Command::Read { .. } => ServiceAction::Read,
        Command::Write { .. } => ServiceAction::Write,
        Command::Append { .. } => ServiceAction::Append,
        Command::Clear { .. } => ServiceAction::Clear,
        Command::Punch { .. } => ServiceAction::Punch,
        Command::Flush { .. } => ServiceAction::Flush,
        Command::FlushCollection { .. } => ServiceAction::FlushCollection,
        Command::FlushPartition { .. } => ServiceAction::FlushPartition,
        Command::FlushOsd { .. } => ServiceAction::FlushOsd,
        Command::Remove { .. } => ServiceAction::Remove,
        Command::GetAttributes { .. } => ServiceAction::GetAttributes,
        Command::SetAttributes { .. } => ServiceAction::SetAttributes,
        Command::List { .. } => ServiceAction::List,
        Command::ListCollection { .. } => ServiceAction::ListCollection,
        Command::CreateCollection { .. } => ServiceAction::CreateCollection,
        Command::RemoveCollection { .. } => ServiceAction::RemoveCollection,
        Command::CreateUserTrackingCollection { .. } => ServiceAction::CreateUserTrackingCollection,
        Command::Query { .. } => ServiceAction::Query,
        Command::RemoveMemberObjects { .. } => ServiceAction::RemoveMemberObjects,
        Command::GetMemberAttributes { .. } => ServiceAction::GetMemberAttributes,
        Command::SetMemberAttributes { .. } => ServiceAction::SetMemberAttributes,
        Command::CopyUserObjects { .. } => ServiceAction::CopyUserObjects,
        Command::CreateSnapshot { .. } => ServiceAction::CreateSnapshot,
        Command::CreateClone { .. } => ServiceAction::CreateClone,
        Command::DetachClone { .. } => ServiceAction::DetachClone,
        Command::RefreshSnapshotOrClone { .. } => ServiceAction::RefreshSnapshotOrClone,
        Command::RestorePartitionFromSnapshot { .. } => ServiceAction::RestorePartitionFromSnapshot,
        Command::ReadMap { .. } => ServiceAction::ReadMap,
        Command::ReadMapsAndCompare { .. } => ServiceAction::ReadMapsAndCompare,
        Command::SetKey(_) => ServiceAction::SetKey,
        Command::PerformScsiCommand { .. } => ServiceAction::PerformScsiCommand,
        Command::PerformTaskManagementFunction { .. } => {
            ServiceAction::PerformTaskManagementFunction
        }
        Command::SetMasterKey { .. } => ServiceAction::SetMasterKey,
    }
}

/// Returns the length of the continuation segment in bytes; 0 for a command without a segment.
///
/// # Errors
/// 5/24/00 for a length that cannot be that of a segment, or for a command that has none.
pub(crate) fn continuation_length(action: ServiceAction, cdb: &[u8]) -> Result<u32, Refusal> {
    let length = u32_at(cdb, CONTINUATION_LENGTH).unwrap_or_default();
    match action {
        // These commands have other fields in bytes 48 to 51.
        ServiceAction::List
        | ServiceAction::ListCollection
        | ServiceAction::ReadMap
        | ServiceAction::SetKey => Ok(0),
        _ if length == 0 => Ok(0),
        ServiceAction::Read
        | ServiceAction::Write
        | ServiceAction::Query
        | ServiceAction::CopyUserObjects
        | ServiceAction::ReadMapsAndCompare
            if length >= MIN_CONTINUATION && length.is_multiple_of(8) =>
        {
            Ok(length)
        }
        _ => Err(Refusal::field(CONTINUATION_LENGTH as u16)),
    }
}

/// Writes the fields of a command. Bytes 10 and 11 may hold other bits already; the bits of the
/// command are added to them.
pub(crate) fn write(command: &Command, cdb: &mut [u8]) {
    let object = match *command {
        // These commands have two partitions in bytes 16 to 31; `Command::object` names one of
        // them.
        Command::CreateSnapshot { source, requested, .. }
        | Command::CreateClone { source, requested, .. } => ObjectAddress::new(source, requested),
        Command::RestorePartitionFromSnapshot { partition, snapshot } => {
            ObjectAddress::new(partition, snapshot)
        }
        _ => command.object(),
    };
    put(cdb, PARTITION, &object.partition.to_be_bytes());
    put(cdb, OBJECT, &object.object.to_be_bytes());
    let (length, start) = length_and_start(command);
    put(cdb, LENGTH, &length.to_be_bytes());
    put(cdb, START, &start.to_be_bytes());
    match *command {
        Command::Create { count, .. } => put(cdb, LENGTH, &count.to_be_bytes()),
        Command::RemovePartition { with_contents: true, .. } => cdb[11] |= 1,
        Command::RemoveCollection { force: true, .. } => cdb[11] |= FORCE,
        Command::Flush { scope, .. }
        | Command::FlushCollection { scope, .. }
        | Command::FlushPartition { scope, .. }
        | Command::FlushOsd { scope } => cdb[10] = cdb[10] & 0xf8 | scope as u8,
        Command::List { list, .. } | Command::ListCollection { list, .. } => {
            cdb[11] |= if list.with_attributes { LIST_ATTR } else { 0 };
            put(cdb, CONTINUATION_LENGTH, &list.identifier.to_be_bytes());
        }
        Command::Query { immediate: true, .. } => cdb[11] |= IMMED_TR,
        Command::CopyUserObjects { method, .. }
        | Command::CreateSnapshot { method, .. }
        | Command::CreateClone { method, .. } => cdb[14] = method.0,
        Command::ReadMap { map_type, .. } => {
            put(cdb, CONTINUATION_LENGTH, &(map_type as u16).to_be_bytes());
        }
        Command::SetKey(request) => write_set_key(&request, cdb),
        Command::SetMasterKey {
            step,
            key_identifier,
            parameter_list_length,
            allocation_length,
        } => {
            cdb[11] |= step & 0x03;
            put(cdb, OBJECT + 1, &key_identifier);
            put(cdb, LENGTH, &parameter_list_length.to_be_bytes());
            put(cdb, LENGTH + 4, &allocation_length.to_be_bytes());
        }
        Command::PerformScsiCommand { cdb: inner } => put(cdb, LENGTH, &inner),
        Command::PerformTaskManagementFunction { function, task_tag } => {
            cdb[FUNCTION] = function;
            put(cdb, START, &task_tag.to_be_bytes());
        }
        _ => {}
    }
}

/// Returns the values of bytes 32 to 39 (length) and 40 to 47 (start) of the CDB.
const fn length_and_start(command: &Command) -> (u64, u64) {
    match *command {
        Command::FormatOsd { capacity } => (capacity, 0),
        Command::CreateAndWrite { length, start, .. }
        | Command::Read { length, start, .. }
        | Command::Write { length, start, .. }
        | Command::Clear { length, start, .. }
        | Command::Punch { length, start, .. }
        | Command::Flush { length, start, .. }
        | Command::ReadMap { allocation_length: length, start, .. }
        | Command::ReadMapsAndCompare { allocation_length: length, start, .. } => (length, start),
        Command::Append { length, .. } => (length, 0),
        Command::List { list, .. } | Command::ListCollection { list, .. } => {
            (list.allocation_length, list.first)
        }
        Command::CreateUserTrackingCollection { source, .. } => (0, source),
        Command::Query { allocation_length, matches, .. } => (allocation_length, matches),
        _ => (0, 0),
    }
}

/// Returns the ALLOCATION LENGTH of the command of SPC in PERFORM SCSI COMMAND: its place follows from
/// the length of the CDB (SPC-4, 4.2.5).
#[must_use]
pub fn performed_allocation_length(cdb: &[u8; 16]) -> u32 {
    let short = |at| u16_at(cdb, at).map_or(0, u32::from);
    match cdb[0] {
        0x12 => short(3),
        0x00..0x20 => u32::from(cdb[4]),
        0x20..0x60 => short(7),
        0x80..0xa0 => u32_at(cdb, 10).unwrap_or_default(),
        0xa0..0xc0 => u32_at(cdb, 6).unwrap_or_default(),
        _ => 0,
    }
}

fn parse_query(cdb: &[u8], collection: ObjectAddress) -> Result<Command, Refusal> {
    let allocation_length = u64_at(cdb, LENGTH).unwrap_or_default();
    let matches = u64_at(cdb, START).unwrap_or_default();
    let immediate = cdb[11] & IMMED_TR != 0;
    if matches != 0 && allocation_length != 0 {
        return Err(Refusal::field(LENGTH as u16));
    }
    if immediate && matches == 0 {
        return Err(Refusal::field(START as u16));
    }
    Ok(Command::Query { collection, allocation_length, matches, immediate })
}

fn parse_list(cdb: &[u8]) -> Result<ListRequest, Refusal> {
    if cdb[11] & 0x0f != ListOrder::Ascending as u8 {
        return Err(Refusal::field(11));
    }
    Ok(ListRequest {
        allocation_length: u64_at(cdb, LENGTH).unwrap_or_default(),
        first: u64_at(cdb, START).unwrap_or_default(),
        identifier: u32_at(cdb, CONTINUATION_LENGTH).unwrap_or_default(),
        with_attributes: cdb[11] & LIST_ATTR != 0,
        order: ListOrder::Ascending,
    })
}

/// Parses FLUSH SCOPE. OSD-2 places the field in byte 10; the initiator of Linux writes it into
/// byte 11.
fn parse_scope(cdb: &[u8]) -> Result<FlushScope, Refusal> {
    let code = if cdb[10] & 0x03 != 0 { cdb[10] } else { cdb[11] };
    FlushScope::from_code(code).ok_or(Refusal::field(10))
}

fn parse_set_key(cdb: &[u8]) -> Result<SetKeyRequest, Refusal> {
    let partition = u64_at(cdb, PARTITION).unwrap_or_default();
    let key = match cdb[11] & 0x03 {
        1 => KeyToSet::Root,
        2 => KeyToSet::Partition { partition },
        3 => KeyToSet::Working { partition, version: cdb[OBJECT] & 0x0f },
        _ => return Err(Refusal::field(11)),
    };
    Ok(SetKeyRequest {
        key,
        key_identifier: array_at(cdb, OBJECT + 1).unwrap_or_default(),
        seed: array_at(cdb, LENGTH).unwrap_or_default(),
    })
}

fn write_set_key(request: &SetKeyRequest, cdb: &mut [u8]) {
    let (code, version) = match request.key {
        KeyToSet::Root => (1, 0),
        KeyToSet::Partition { .. } => (2, 0),
        KeyToSet::Working { version, .. } => (3, version & 0x0f),
    };
    cdb[11] |= code;
    cdb[OBJECT] = version;
    put(cdb, OBJECT + 1, &request.key_identifier);
    put(cdb, LENGTH, &request.seed);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns one command of every service action, with a different value in each field.
    pub(crate) fn one_of_each() -> Vec<Command> {
        let mut commands = commands_on_objects();
        commands.extend(others_of_each());
        commands
    }

    fn commands_on_objects() -> Vec<Command> {
        let object = ObjectAddress::new(0x10000, 0x10001);
        let (partition, requested) = (0x10000, 0x10007);
        let (length, start, scope) = (11, 22, FlushScope::AttributesOnly);
        vec![
            Command::ObjectStructureCheck { object },
            Command::FormatOsd { capacity: 1 << 30 },
            Command::CreatePartition { requested },
            Command::RemovePartition { partition, with_contents: true },
            Command::RemovePartition { partition, with_contents: false },
            Command::Create { partition, requested, count: 3 },
            Command::CreateAndWrite { partition, requested, length, start },
            Command::Read { object, length, start },
            Command::Write { object, length, start },
            Command::Append { object, length },
            Command::Clear { object, length, start },
            Command::Punch { object, length, start },
            Command::Flush { object, scope, length, start },
            Command::FlushCollection { collection: object, scope },
            Command::FlushPartition { partition, scope: FlushScope::RangeOrEverything },
            Command::FlushOsd { scope },
            Command::Remove { object },
            Command::GetAttributes { object },
            Command::SetAttributes { object },
        ]
    }

    fn others_of_each() -> Vec<Command> {
        let object = ObjectAddress::new(0x10000, 0x10001);
        let (partition, requested) = (0x10000, 0x10007);
        let (length, start) = (11, 22);
        let list = ListRequest {
            allocation_length: 4096,
            first: 0x10003,
            identifier: 77,
            with_attributes: true,
            order: ListOrder::Ascending,
        };
        let method = CopyMethod(1);
        let key_identifier = [1, 2, 3, 4, 5, 6, 7];
        let set_key = |key| Command::SetKey(SetKeyRequest { key, key_identifier, seed: [9; 20] });
        vec![
            Command::List { partition, list },
            Command::ListCollection { collection: object, list },
            Command::CreateCollection { partition, requested },
            Command::RemoveCollection { collection: object, force: true },
            Command::CreateUserTrackingCollection { partition, requested, source: 0x10009 },
            Command::Query {
                collection: object,
                allocation_length: 512,
                matches: 0,
                immediate: false,
            },
            Command::Query {
                collection: object,
                allocation_length: 0,
                matches: 0x10008,
                immediate: true,
            },
            Command::RemoveMemberObjects { collection: object },
            Command::GetMemberAttributes { collection: object },
            Command::SetMemberAttributes { collection: object },
            Command::CopyUserObjects { partition, requested, method },
            Command::CreateSnapshot { source: partition, requested, method },
            Command::CreateClone { source: partition, requested, method },
            Command::DetachClone { clone: partition },
            Command::RefreshSnapshotOrClone { copy: partition },
            Command::RestorePartitionFromSnapshot { partition, snapshot: requested },
            Command::ReadMap {
                object,
                allocation_length: length,
                start,
                map_type: MapType::DamagedData,
            },
            Command::ReadMapsAndCompare { object, allocation_length: length, start },
            set_key(KeyToSet::Root),
            set_key(KeyToSet::Partition { partition }),
            set_key(KeyToSet::Working { partition, version: 15 }),
            Command::SetMasterKey {
                step: 2,
                key_identifier,
                parameter_list_length: 128,
                allocation_length: 256,
            },
            Command::PerformScsiCommand { cdb: *b"\x12\0\0\0\x24\0\0\0\0\0\0\0\0\0\0\0" },
            Command::PerformTaskManagementFunction { function: 5, task_tag: 8 },
        ]
    }

    #[test]
    fn a_flush_scope_is_accepted_in_byte_10_and_in_byte_11() {
        let mut cdb = [0; 236];
        cdb[11] = 0x32;
        assert_eq!(parse_scope(&cdb), Ok(FlushScope::RangeOrEverything));
        cdb[10] = 1;
        assert_eq!(parse_scope(&cdb), Ok(FlushScope::AttributesOnly));
        cdb[10] = 3;
        assert_eq!(parse_scope(&cdb), Err(Refusal::field(10)));
    }

    #[test]
    fn a_query_into_a_collection_returns_no_list_and_an_immediate_one_needs_a_collection() {
        let mut cdb = [0; 236];
        cdb[11] = IMMED_TR;
        let refused = |cdb: &[u8]| parse(ServiceAction::Query, cdb).map_err(Refusal::pointer);
        assert_eq!(refused(&cdb), Err(Some(40)));
        cdb[39] = 8;
        cdb[47] = 1;
        assert_eq!(refused(&cdb), Err(Some(32)));
        cdb[11] = 0;
        assert_eq!(refused(&cdb), Err(Some(32)));
    }

    #[test]
    fn a_continuation_segment_has_a_plausible_length_and_a_command_that_reads_it() {
        let length = |action, bytes: u32| {
            let mut cdb = [0; 236];
            put(&mut cdb, CONTINUATION_LENGTH, &bytes.to_be_bytes());
            continuation_length(action, &cdb).map_err(Refusal::pointer)
        };
        assert_eq!(length(ServiceAction::Read, 0), Ok(0));
        assert_eq!(length(ServiceAction::Read, 112), Ok(112));
        assert_eq!(length(ServiceAction::Read, 40), Err(Some(48)), "no descriptor");
        assert_eq!(length(ServiceAction::Read, 113), Err(Some(48)), "no multiple of 8");
        assert_eq!(length(ServiceAction::Remove, 112), Err(Some(48)));
        assert_eq!(length(ServiceAction::List, 7), Ok(0), "a list identifier");
    }
}
