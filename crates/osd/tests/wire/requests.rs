//! Requests of every service action with their buffers: without attributes, and with lists in both
//! directions.

use bytes::Bytes;
use object::{
    Attribute, AttributeId, AttributeSelection, Command, Continuation, CopySource, ListedObject,
    MapRun, MapRunKind, ObjectList, ObjectType, Query, QueryCriterion, QueryMatch, ScatterEntry,
    Timestamp,
};
use osd::{
    AttributeParameters, ContinuationSegment, ListInBuffer, ListKind, OsdCdb, Space, encode_list,
    encode_map, list,
};

use crate::{commands::OBJECT, exchange::Exchange};

/// The number of an attributes page for applications.
const PAGE: u32 = 0x1_0000;
const LOGICAL_LENGTH: AttributeId = AttributeId::new(1, 0x82);

/// Returns a request that sets and returns no attribute.
pub fn plain(command: Command) -> Exchange {
    let (cdb, data_out) = with_continuation(command);
    Exchange {
        cdb: cdb.encode().to_vec(),
        data_out,
        data_in: command_data(&command),
        ..Exchange::default()
    }
}

/// Returns a request that sets one attribute and retrieves two, each by a list in a buffer. The
/// lists are behind the data, and the retrieved attributes behind the data that the drive returns.
pub fn with_lists(command: Command) -> Exchange {
    let (mut cdb, mut data_out) = with_continuation(command);
    let mut data_in = command_data(&command);
    let mut place = |list: &[u8]| {
        data_out.resize(data_out.len().next_multiple_of(8), 0);
        let offset = data_out.len() as u64;
        data_out.extend(list);
        ListInBuffer { length: list.len() as u32, offset }
    };
    let set = place(&list::encode_attributes(&[Attribute::new(PAGE, 1, &b"sixteen bytes!!!"[..])]));
    let selections = [LOGICAL_LENGTH, AttributeId::new(PAGE, 2)].map(AttributeSelection::One);
    let get = place(&list::encode_selections(&selections));
    let length = Bytes::copy_from_slice(&4096u64.to_be_bytes());
    let values = [Attribute { id: LOGICAL_LENGTH, value: length }, Attribute::new(PAGE, 2, "")];
    let retrieved = list::encode_attributes(&values);
    data_in.resize(data_in.len().next_multiple_of(8), 0);
    let space = Space { offset: data_in.len() as u64, allocation_length: retrieved.len() as u32 };
    data_in.extend(retrieved);
    cdb.attributes =
        AttributeParameters::Lists { get: Some(get), retrieved: Some(space), set: Some(set) };
    Exchange { cdb: cdb.encode().to_vec(), data_out, data_in, ..Exchange::default() }
}

/// Returns the CDB of a command, and the Data-Out buffer with the continuation segment and the data.
fn with_continuation(command: Command) -> (OsdCdb, Vec<u8>) {
    let mut cdb = OsdCdb::new(command);
    let continuation = continuation(&command);
    let mut data_out = Vec::new();
    if continuation != Continuation::None {
        let integrity = cdb.integrity;
        let service_action = cdb.service_action();
        data_out = ContinuationSegment { service_action, integrity, continuation }.encode();
        cdb.continuation_length = data_out.len() as u32;
    }
    data_out.extend((0..command.data_out_length()).map(|at| at as u8));
    (cdb, data_out)
}

fn continuation(command: &Command) -> Continuation {
    match command {
        Command::Read { .. } | Command::Write { .. } => {
            let ranges = [0, 0x2000].map(|start| ScatterEntry { start, length: 2048 });
            Continuation::ScatterGather(ranges.to_vec())
        }
        Command::Query { .. } => {
            let (minimum, maximum) = (Bytes::from_static(b"aaaa"), Bytes::from_static(b"zz"));
            let criterion = QueryCriterion { id: AttributeId::new(PAGE, 1), minimum, maximum };
            Continuation::Query(Query { match_type: QueryMatch::All, criteria: vec![criterion] })
        }
        Command::ReadMapsAndCompare { .. } => Continuation::UserObject(OBJECT),
        Command::CopyUserObjects { .. } => Continuation::CopySource(CopySource {
            object: OBJECT,
            with_attributes: true,
            freeze: false,
            time: Timestamp::ZERO,
        }),
        _ => Continuation::None,
    }
}

/// Returns the data that a drive returns for a command, without attributes.
fn command_data(command: &Command) -> Vec<u8> {
    let run = MapRun { kind: MapRunKind::Written, start: 512, length: 4096 };
    match *command {
        Command::Read { length, .. } => vec![0x5a; length as usize],
        Command::List { list, .. } | Command::ListCollection { list, .. } => {
            listed(ListKind::UserObjects, list.with_attributes)
        }
        Command::Query { matches: 0, .. } => listed(ListKind::Query, false),
        Command::ReadMap { .. } | Command::ReadMapsAndCompare { .. } => encode_map(&[run]),
        Command::PerformScsiCommand { .. } => vec![0x11; 36],
        _ => Vec::new(),
    }
}

fn listed(kind: ListKind, with_attributes: bool) -> Vec<u8> {
    let attributes = if with_attributes { vec![Attribute::new(PAGE, 1, "1")] } else { Vec::new() };
    let object = |id| ListedObject {
        id,
        object_type: ObjectType::UserObject,
        attributes: attributes.clone(),
    };
    let entry = if with_attributes { 40 } else { 8 };
    let objects = vec![object(0x1_0003), object(0x1_0004)];
    let list = ObjectList { objects, total_bytes: 2 * entry, ..ObjectList::default() };
    encode_list(&list, kind, with_attributes)
}
