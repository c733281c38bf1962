//! Encodes requests as CDBs with Data-Out. The module `signing` adds the signatures.
//!
//! Data-Out: the CDB continuation segment, the data, the list of attributes to set, the list of attributes to return,
//! the integrity information. Data-In: the data, the retrieved attributes, the integrity information. Each part begins
//! at an offset that the CDB can express, with zeros before it.

use bytes::{Bytes, BytesMut};
use object::{
    AttributeSelection, CURRENT_COMMAND, Command, Continuation, MAX_VALUE_LENGTH, ObjectError,
    ObjectRequest, PageFamily, RefusedField, family_of, standard_attribute,
};
use osd::{
    AttributeParameters, ContinuationSegment, ListInBuffer, OsdCdb, PageToGet, Space,
    ValueInBuffer, list, offset,
    security::{DATA_IN_INTEGRITY_BYTES, IntegrityCheckValue, SecurityMethod},
};

/// Maximum length of each buffer of a command in bytes. A node of Forebay accepts 32 MiB of data and lists together.
pub(crate) const MOST_BYTES: u64 = 32 << 20;
/// Space in Data-In for the current command page in page format, in bytes. A multiple of 8.
const CURRENT_SPACE: u32 = 80;
/// Space in Data-In for the current command page in a list, in bytes: six attributes.
const CURRENT_ENTRIES: u32 = 6 * 16 + 32 + 5 * 8;
/// Space in Data-In for any page in page format, in bytes.
const PAGE_SPACE: u32 = 4096;
/// Space in Data-In for attributes whose lengths vary, in bytes. A drive of Forebay keeps 64 KiB of them for each
/// object.
const VARYING_SPACE: u32 = 128 << 10;
/// Space in Data-In for the attributes of several objects, in bytes.
const MEMBERS_SPACE: u32 = 4 << 20;

/// The CDB and the Data-Out of a request, before they are signed.
pub(crate) struct EncodedRequest {
    pub(crate) cdb: OsdCdb,
    /// The Data-Out buffer without integrity information.
    pub(crate) data_out: Bytes,
    /// Lengths in bytes of the data, of the list of attributes to set, and of the list of attributes to return.
    pub(crate) lengths: [u64; 3],
    pub(crate) incoming: Incoming,
}

/// The layout of the Data-In buffer that the drive may fill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    /// Maximum length in bytes of the data that the command returns.
    pub(crate) data: u64,
    pub(crate) attributes: Option<Space>,
    /// Offset of the integrity information in Data-In, with the method ALLDATA.
    pub(crate) integrity: Option<u64>,
    /// Maximum length of Data-In in bytes.
    pub(crate) total: u32,
}

/// Encodes a request for a security method.
///
/// # Errors
/// The request is larger than a drive accepts, or contradicts itself.
pub(crate) fn encode(
    request: &ObjectRequest,
    method: SecurityMethod,
) -> Result<EncodedRequest, ObjectError> {
    let command = request.command;
    if request.data.len() as u64 != command.data_out_length() {
        return Err(too_long());
    }
    if let Some(wrong) = request.set.iter().find(|set| set.value.len() > MAX_VALUE_LENGTH) {
        return Err(ObjectError::InvalidAttribute { page: wrong.id.page, number: wrong.id.number });
    }
    let mut cdb = OsdCdb { options: request.options, ..OsdCdb::new(command) };
    let data = data_in_length(&command);
    let place = offset::next(data).ok_or_else(too_long)?;
    let wants_current = wants_current(&command, method);
    let data_out = if let Some(page) = single_page(request, wants_current) {
        let mut out = DataOut::new(request, &mut cdb)?;
        let allocation_length =
            if page == Some(CURRENT_COMMAND) { CURRENT_SPACE } else { PAGE_SPACE };
        let space = Space { offset: place, allocation_length };
        let get = page.map(|page| PageToGet { page, space });
        let set = match request.set.first() {
            None => None,
            Some(set) => {
                let offset = out.append(&set.value, 1)?;
                Some(ValueInBuffer { id: set.id, length: set.value.len() as u32, offset })
            }
        };
        if get.is_some() || set.is_some() {
            cdb.attributes = AttributeParameters::Page { get, set };
        }
        out
    } else {
        let mut out = DataOut::new(request, &mut cdb)?;
        let set = match &request.set[..] {
            [] => None,
            set => Some(out.append_list(&list::encode_attributes(set), 1)?),
        };
        let selections = selections(request, wants_current);
        let get = match &selections[..] {
            [] => None,
            get => Some(out.append_list(&list::encode_selections(get), 2)?),
        };
        let allocation_length = space_for(&command, &selections);
        let retrieved = get.map(|_| Space { offset: place, allocation_length });
        cdb.attributes = AttributeParameters::Lists { get, retrieved, set };
        out
    };
    let attributes = cdb.attributes.space();
    let end = attributes
        .map_or(data, |space| space.offset.saturating_add(space.allocation_length.into()));
    let integrity = match method {
        SecurityMethod::AllData => Some(offset::next(end).ok_or_else(too_long)?),
        _ => None,
    };
    let total = integrity.map_or(end, |at| at + DATA_IN_INTEGRITY_BYTES as u64);
    if total > MOST_BYTES || data_out.bytes.len() as u64 > MOST_BYTES {
        return Err(too_long());
    }
    let incoming = Incoming { data, attributes, integrity, total: total as u32 };
    let DataOut { bytes, lengths } = data_out;
    Ok(EncodedRequest { cdb, data_out: bytes, lengths, incoming })
}

fn too_long() -> ObjectError {
    ObjectError::InvalidField { field: RefusedField::Length }
}

/// The Data-Out buffer of a request while its parts are appended.
struct DataOut {
    bytes: Bytes,
    lengths: [u64; 3],
}

impl DataOut {
    /// Begins the Data-Out buffer with continuation segment and data.
    fn new(request: &ObjectRequest, cdb: &mut OsdCdb) -> Result<Self, ObjectError> {
        let data = request.data.clone().into_bytes();
        let lengths = [data.len() as u64, 0, 0];
        if request.continuation == Continuation::None {
            return Ok(Self { bytes: data, lengths });
        }
        let segment = ContinuationSegment {
            service_action: cdb.service_action(),
            integrity: IntegrityCheckValue::ZERO,
            continuation: request.continuation.clone(),
        };
        let segment = segment.encode();
        cdb.continuation_length = u32::try_from(segment.len()).map_err(|_| too_long())?;
        let mut out = Self { bytes: segment.into(), lengths };
        out.append(&data, 0)?;
        Ok(out)
    }

    /// Appends a part to Data-Out at the next offset that a CDB can express, and returns the offset. `kind` is the
    /// index of the part's length in `lengths`.
    fn append(&mut self, part: &[u8], kind: usize) -> Result<u64, ObjectError> {
        self.lengths[kind] = part.len() as u64;
        if part.is_empty() {
            return Ok(0);
        }
        let at = offset::next(self.bytes.len() as u64).ok_or_else(too_long)?;
        if at > MOST_BYTES {
            return Err(too_long());
        }
        let mut bytes = BytesMut::with_capacity(at as usize + part.len());
        bytes.extend_from_slice(&self.bytes);
        bytes.resize(at as usize, 0);
        bytes.extend_from_slice(part);
        self.bytes = bytes.freeze();
        Ok(at)
    }

    fn append_list(&mut self, list: &[u8], kind: usize) -> Result<ListInBuffer, ObjectError> {
        let length = u32::try_from(list.len()).map_err(|_| too_long())?;
        Ok(ListInBuffer { length, offset: self.append(list, kind)? })
    }
}

/// Returns true if the initiator needs the current command page: for the response integrity check value, or for the
/// identifiers and positions that the drive has chosen.
fn wants_current(command: &Command, method: SecurityMethod) -> bool {
    method >= SecurityMethod::CmdRsp
        || command.creates()
        || matches!(command, Command::Append { .. })
}

/// Returns the page that the command returns in page format, if CDBFMT 2 has room for all attributes of the request:
/// one page to return, and one value to set. Returns `None` if the command needs lists.
fn single_page(request: &ObjectRequest, wants_current: bool) -> Option<Option<u32>> {
    let fits = match &request.set[..] {
        [] => true,
        [one] => one.id.page != 0,
        _ => false,
    };
    match &request.get[..] {
        _ if !fits => None,
        [] => Some(wants_current.then_some(CURRENT_COMMAND)),
        [AttributeSelection::PageFormat(page)] if !wants_current && *page != 0 => Some(Some(*page)),
        _ => None,
    }
}

/// Returns the entries of the list of attributes to return. The current command page, if wanted, is the last entry.
fn selections(request: &ObjectRequest, wants_current: bool) -> Vec<AttributeSelection> {
    let as_list = |selection: &AttributeSelection| match *selection {
        AttributeSelection::PageFormat(page) => AttributeSelection::Page(page),
        other => other,
    };
    let mut selections: Vec<_> = request.get.iter().map(as_list).collect();
    if wants_current {
        selections.push(AttributeSelection::Page(CURRENT_COMMAND));
    }
    selections
}

/// Returns the space for retrieved attributes in a list, in bytes.
fn space_for(command: &Command, selections: &[AttributeSelection]) -> u32 {
    let is_of_several = matches!(
        command,
        Command::Create { count: 2.., .. }
            | Command::GetMemberAttributes { .. }
            | Command::SetMemberAttributes { .. }
            | Command::RemoveMemberObjects { .. }
    );
    if is_of_several {
        return MEMBERS_SPACE;
    }
    let bytes = |selection: &AttributeSelection| match selection {
        AttributeSelection::Page(CURRENT_COMMAND) => Some(CURRENT_ENTRIES),
        AttributeSelection::One(id) => {
            let length = standard_attribute(*id)?.length?;
            Some(16 + u32::from(length).next_multiple_of(8))
        }
        _ => None,
    };
    let header = 8;
    let known = selections.iter().map(bytes).try_fold(header, |sum, bytes| Some(sum + bytes?));
    known.unwrap_or(VARYING_SPACE)
}

/// Returns the most bytes of data that the command returns.
pub(crate) fn data_in_length(command: &Command) -> u64 {
    match *command {
        Command::Read { length, .. } => length,
        Command::List { list, .. } | Command::ListCollection { list, .. } => list.allocation_length,
        Command::Query { allocation_length, .. }
        | Command::ReadMap { allocation_length, .. }
        | Command::ReadMapsAndCompare { allocation_length, .. } => allocation_length,
        Command::PerformScsiCommand { cdb } => osd::performed_allocation_length(&cdb).into(),
        Command::SetMasterKey { allocation_length, .. } => allocation_length as u64,
        _ => 0,
    }
}

/// Returns true if the request's lists name attributes pages that only collections have.
pub(crate) fn names_collection(request: &ObjectRequest) -> bool {
    let is_collection =
        |page: u32| family_of(page) == PageFamily::Of(object::ObjectType::Collection);
    let gets = request.get.iter().any(|selection| match *selection {
        AttributeSelection::One(id) => is_collection(id.page),
        AttributeSelection::Page(page) | AttributeSelection::PageFormat(page) => {
            is_collection(page)
        }
        AttributeSelection::All | AttributeSelection::NumberInAllPages(_) => false,
    });
    gets || request.set.iter().any(|set| is_collection(set.id.page))
}

#[cfg(test)]
mod tests {
    use object::{Attribute, AttributeId, ObjectAddress, ScatterEntry};
    use volume::Data;

    use super::*;

    const OBJECT: ObjectAddress = ObjectAddress::new(0x10000, 0x10001);

    fn encoded(request: &ObjectRequest, method: SecurityMethod) -> (OsdCdb, EncodedRequest) {
        let encoded = encode(request, method).unwrap();
        (OsdCdb::parse(&encoded.cdb.encode()).unwrap(), encoded)
    }

    #[test]
    fn a_write_without_lists_is_sent_without_a_copy() {
        let data = Bytes::from(vec![7; 4096]);
        let write = Command::Write { object: OBJECT, length: 4096, start: 0 };
        let request = ObjectRequest::new(write).with_data(data.clone().into());
        let (cdb, sent) = encoded(&request, SecurityMethod::NoSec);
        assert_eq!(sent.data_out.as_ptr(), data.as_ptr());
        assert_eq!((cdb.command, sent.incoming.total), (write, 0));
        // With CMDRSP, Data-In has the current command page and no other part.
        let (cdb, sent) = encoded(&request, SecurityMethod::CmdRsp);
        assert_eq!(sent.data_out.as_ptr(), data.as_ptr());
        assert_eq!((cdb.attributes.format(), sent.incoming.total), (2, 80));
    }

    #[test]
    fn the_parts_of_both_buffers_do_not_overlap() {
        let mut request =
            ObjectRequest::new(Command::Write { object: OBJECT, length: 11, start: 0 });
        request.data = Data::from(b"hello world".to_vec());
        request.continuation =
            Continuation::ScatterGather(vec![ScatterEntry { start: 5, length: 11 }]);
        request.set.push(Attribute::new(0x10000, 1, b"abc".to_vec()));
        request.get.push(AttributeSelection::One(AttributeId::new(1, 0x82)));
        let (cdb, sent) = encoded(&request, SecurityMethod::AllData);
        let AttributeParameters::Lists { get: Some(get), retrieved: Some(space), set: Some(set) } =
            cdb.attributes
        else {
            panic!("{:?}", cdb.attributes)
        };
        let continuation = cdb.continuation_length as usize;
        assert_eq!(&sent.data_out[continuation..continuation + 11], b"hello world");
        assert!(set.offset >= continuation as u64 + 11);
        assert!(get.offset >= set.offset + u64::from(set.length));
        let at = |list: ListInBuffer| {
            sent.data_out
                .slice(list.offset as usize..(list.offset + u64::from(list.length)) as usize)
        };
        assert_eq!(list::parse_attributes(&at(set), 9).unwrap(), request.set);
        let selected = list::parse_selections(&at(get), 9).unwrap();
        assert_eq!(selected.last(), Some(&AttributeSelection::Page(CURRENT_COMMAND)));
        assert_eq!(selected[..1], request.get);
        let end = space.offset + u64::from(space.allocation_length);
        assert!(sent.incoming.integrity.unwrap() >= end);
        assert_eq!(sent.lengths[0], 11);
    }

    #[test]
    fn a_request_larger_than_a_drive_accepts_is_refused_here() {
        let read = Command::Read { object: OBJECT, length: u64::MAX, start: 0 };
        assert!(encode(&ObjectRequest::new(read), SecurityMethod::NoSec).is_err());
        let read = Command::Read { object: OBJECT, length: MOST_BYTES + 1, start: 0 };
        assert!(encode(&ObjectRequest::new(read), SecurityMethod::NoSec).is_err());
        let lies = Command::Write { object: OBJECT, length: 5, start: 0 };
        assert!(encode(&ObjectRequest::new(lies), SecurityMethod::NoSec).is_err());
        let long = ObjectRequest::new(Command::SetAttributes { object: OBJECT })
            .setting(Attribute::new(0x10000, 1, vec![0; MAX_VALUE_LENGTH + 1]));
        assert!(encode(&long, SecurityMethod::NoSec).is_err());
    }
}
