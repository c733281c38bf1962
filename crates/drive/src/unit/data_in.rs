//! Makes the Data-In buffer of a command from the reply of the store: command data, retrieved attributes and integrity
//! information, with zeros between them.

use std::ops::Range;

use bytes::Bytes;
use object::{
    Attribute, AttributeId, AttributeSelection, CURRENT_COMMAND, Command, CurrentCommand,
    ListedObject, MAX_VALUE_LENGTH, ObjectReply, ObjectRequest, ReplyData,
};
use osd::{
    AttributeParameters, ListKind, OsdCdb, Refusal, current_command_page, encode_list, encode_map,
    list, runs_within,
    security::{DataInIntegrity, IntegrityCheckValue, SecurityMethod, response_of_page},
};
use volume::Data;

use super::layout::InLayout;
use crate::security::Proof;

/// The attributes of the current command page that a request selects. The unit adds them to the store's reply, because
/// the response integrity check value among them covers the others.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CurrentSelections {
    /// The position of each selection in the list, and the number of its attribute.
    one: Vec<(usize, u32)>,
    /// True if every entry of the list selects one attribute: then positions in the list are positions in the reply.
    is_plain: bool,
    whole_page: bool,
    page_format: bool,
}

impl CurrentSelections {
    /// Takes the selections of the current command page out of a request to the store.
    pub fn take(request: &mut ObjectRequest) -> Self {
        let is_one =
            |selection: &AttributeSelection| matches!(selection, AttributeSelection::One(_));
        let mut taken =
            Self { is_plain: request.get.iter().all(is_one), ..CurrentSelections::default() };
        let mut place = 0;
        request.get.retain(|selection| {
            place += 1;
            match *selection {
                AttributeSelection::One(AttributeId { page: CURRENT_COMMAND, number }) => {
                    taken.one.push((place - 1, number));
                    false
                }
                AttributeSelection::Page(CURRENT_COMMAND) => {
                    taken.whole_page = true;
                    false
                }
                AttributeSelection::PageFormat(CURRENT_COMMAND) => {
                    taken.page_format = true;
                    false
                }
                _ => true,
            }
        });
        taken
    }

    /// Returns true if the response integrity check value is among the selected attributes.
    fn has_value(&self) -> bool {
        self.whole_page || self.page_format || self.one.iter().any(|(_, number)| *number == 1)
    }

    /// Adds the selected attributes of the current command page to a reply of the store.
    fn put(&self, reply: &mut ObjectReply, value: &IntegrityCheckValue) {
        let current = reply.current;
        let attribute = |number| Attribute {
            id: AttributeId::new(CURRENT_COMMAND, number),
            value: value_of(&current, number, value),
        };
        for (place, number) in &self.one {
            if self.is_plain && *place <= reply.attributes.len() {
                reply.attributes.insert(*place, attribute(*number));
            } else {
                reply.attributes.push(attribute(*number));
            }
        }
        if self.whole_page {
            reply.attributes.extend((1..=6).map(attribute));
        }
        if self.page_format {
            let page = current_command_page(&current, value);
            reply.page = Some(Bytes::copy_from_slice(&page));
        }
    }
}

fn value_of(current: &CurrentCommand, number: u32, value: &IntegrityCheckValue) -> Bytes {
    match number {
        1 => Bytes::copy_from_slice(&value.0),
        2 => {
            let code = current.object_type.map_or(0, |object_type| object_type as u8);
            Bytes::copy_from_slice(&[code])
        }
        3 => Bytes::copy_from_slice(&current.object.partition.to_be_bytes()),
        4 => Bytes::copy_from_slice(&current.object.object.to_be_bytes()),
        5 => Bytes::copy_from_slice(&current.append_start.to_be_bytes()),
        6 => Bytes::copy_from_slice(&current.change_in_used.to_be_bytes()),
        _ => Bytes::new(),
    }
}

/// Encodes Data-In from a reply of the store. `capacity` is the maximum number of bytes that the initiator can receive.
pub fn encode(
    cdb: &OsdCdb,
    proof: &Proof,
    layout: &InLayout,
    mut reply: ObjectReply,
    current: &CurrentSelections,
    capacity: u64,
) -> Data {
    let signed = proof.signed.as_ref();
    let value = match signed {
        Some(signed) if proof.method >= SecurityMethod::CmdRsp && current.has_value() => {
            let page = current_command_page(&reply.current, &IntegrityCheckValue::ZERO);
            response_of_page(&signed.key, cdb.nonce, &page)
        }
        _ => IntegrityCheckValue::ZERO,
    };
    current.put(&mut reply, &value);
    let mut buffer = Buffer { data: Data::new(), capacity };
    let data = std::mem::take(&mut reply.data);
    let data = command_data(&cdb.command, data, layout.data);
    let data_bytes = data.len() as u64;
    buffer.push(data, &(0..layout.data));
    let mut retrieved_bytes = 0;
    if let Some(place) = &layout.retrieved {
        let retrieved = Data::from(retrieved(cdb, reply));
        if !retrieved.is_empty() {
            retrieved_bytes = (retrieved.len() as u64).min(place.end - place.start);
            buffer.push(retrieved, place);
        }
    }
    if let (Some(place), Some(signed)) = (&layout.integrity, signed) {
        buffer.fill(place.start);
        let pieces = buffer.data.parts().iter().map(Bytes::as_ref);
        let lengths = [data_bytes, retrieved_bytes];
        let information = DataInIntegrity::new(&signed.key, cdb.nonce, pieces, lengths);
        buffer.push(Data::from(information.to_bytes().to_vec()), place);
    }
    buffer.data
}

/// Checks that the initiator can receive the integrity information of Data-In, without which it could not check the
/// data. Call this before the command has any effect.
///
/// # Errors
/// 5/24/00 with a pointer to the offset of the integrity information.
pub fn check_capacity(layout: &InLayout, capacity: u64) -> Result<(), Refusal> {
    match &layout.integrity {
        Some(place) if place.end > capacity => Err(Refusal::Field(228)),
        _ => Ok(()),
    }
}

/// The Data-In buffer while it is filled. Bytes beyond the initiator's capacity are left out.
struct Buffer {
    data: Data,
    capacity: u64,
}

impl Buffer {
    /// Appends zeros up to the start of `place`, then `part`, cut to the length of `place` and to the capacity.
    fn push(&mut self, part: Data, place: &Range<u64>) {
        if part.is_empty() {
            return;
        }
        self.fill(place.start);
        let room = self.capacity.min(place.end).saturating_sub(self.data.len() as u64);
        let length = (part.len() as u64).min(room) as usize;
        let part = if length == part.len() { part } else { part.slice(0, length) };
        self.data.append(part);
    }

    fn fill(&mut self, to: u64) {
        let missing = to.min(self.capacity).saturating_sub(self.data.len() as u64);
        if missing > 0 {
            self.data.append(Data::zeros(missing as usize));
        }
    }
}

/// Encodes the data that the command returns, cut to `length` bytes.
fn command_data(command: &Command, data: ReplyData, length: u64) -> Data {
    let data = match data {
        ReplyData::None => Data::new(),
        ReplyData::Bytes(data) => data,
        ReplyData::List(mut list) => {
            let (kind, with_attributes) = kind_of(command);
            if with_attributes {
                list.objects.iter_mut().for_each(bound);
            }
            encode_list(&list, kind, with_attributes).into()
        }
        ReplyData::Map(runs) => {
            let most = runs_within(length).min(runs.len());
            encode_map(&runs[..most]).into()
        }
    };
    match usize::try_from(length) {
        Ok(length) if length < data.len() => data.slice(0, length),
        _ => data,
    }
}

const fn kind_of(command: &Command) -> (ListKind, bool) {
    match command {
        Command::List { partition: 0, list } => (ListKind::Partitions, list.with_attributes),
        Command::ListCollection { collection, list } if collection.object == 0 => {
            (ListKind::Collections, list.with_attributes)
        }
        Command::List { list, .. } | Command::ListCollection { list, .. } => {
            (ListKind::UserObjects, list.with_attributes)
        }
        _ => (ListKind::Query, false),
    }
}

/// Encodes the attributes that the command returns; an empty buffer if it asked for none.
fn retrieved(cdb: &OsdCdb, mut reply: ObjectReply) -> Vec<u8> {
    match cdb.attributes {
        AttributeParameters::SetOne { .. } => Vec::new(),
        AttributeParameters::Page { .. } => reply.page.map_or_else(Vec::new, Vec::from),
        AttributeParameters::Lists { get: None, .. } => Vec::new(),
        AttributeParameters::Lists { .. } => match cdb.command {
            // The attributes are in the list of objects. Only those of the current command are here.
            Command::List { list, .. } | Command::ListCollection { list, .. }
                if list.with_attributes =>
            {
                current_of(&reply).map_or_else(Vec::new, |list| list::encode_attributes(&list))
            }
            Command::Create { count: 2.., .. }
            | Command::GetMemberAttributes { .. }
            | Command::SetMemberAttributes { .. }
            | Command::RemoveMemberObjects { .. } => members_of(&mut reply),
            _ => {
                reply.attributes.retain(|attribute| attribute.value.len() <= MAX_VALUE_LENGTH);
                list::encode_attributes(&reply.attributes)
            }
        },
    }
}

/// Encodes the list of the objects of a command. The attributes of the current command, such as the response integrity
/// check value, are the last ones of the first object, or in a list of their own if there is no object.
fn members_of(reply: &mut ObjectReply) -> Vec<u8> {
    let current = current_of(reply).unwrap_or_default();
    let Some(first) = reply.members.first_mut() else {
        return match current.is_empty() {
            true => list::encode_objects(&[]),
            false => list::encode_attributes(&current),
        };
    };
    let bytes = |attribute: &Attribute| attribute.value.len().next_multiple_of(8) + 16;
    let room = usize::from(u16::MAX).saturating_sub(current.iter().map(bytes).sum());
    bound_to(first, room);
    first.attributes.extend(current);
    reply.members.iter_mut().for_each(bound);
    list::encode_objects(&reply.members)
}

/// Returns the attributes of the current command page in a reply; `None` if there are none.
fn current_of(reply: &ObjectReply) -> Option<Vec<Attribute>> {
    let current = reply.attributes.iter().filter(|attribute| attribute.id.page == CURRENT_COMMAND);
    let current: Vec<_> = current.cloned().collect();
    (!current.is_empty()).then_some(current)
}

/// Leaves out the attributes of one object of a list that do not fit its length field of 16 bits.
fn bound(object: &mut ListedObject) {
    bound_to(object, usize::from(u16::MAX));
}

/// Leaves out the attributes of one object of a list that do not fit `left` bytes.
fn bound_to(object: &mut ListedObject, mut left: usize) {
    object.attributes.retain(|attribute| {
        let length = attribute.value.len().next_multiple_of(8) + 16;
        let fits = attribute.value.len() <= MAX_VALUE_LENGTH && length <= left;
        left -= if fits { length } else { 0 };
        fits
    });
}

#[cfg(test)]
mod tests {
    use object::{ListRequest, ObjectAddress, ObjectList, ObjectType};
    use osd::{ListInBuffer, Space};

    use super::*;

    const NO_SECURITY: Proof = Proof { method: SecurityMethod::NoSec, signed: None };

    fn read(length: u64, offset: u64, allocation_length: u32) -> OsdCdb {
        let object = ObjectAddress::new(0x10000, 0x10001);
        let mut cdb = OsdCdb::new(Command::Read { object, length, start: 0 });
        cdb.attributes = AttributeParameters::Lists {
            get: Some(ListInBuffer { length: 16, offset: 0 }),
            retrieved: Some(Space { offset, allocation_length }),
            set: None,
        };
        cdb
    }

    fn encoded(cdb: &OsdCdb, reply: ObjectReply, capacity: u64) -> Bytes {
        let layout = InLayout::new(cdb, NO_SECURITY.method).unwrap();
        let current = CurrentSelections::default();
        encode(cdb, &NO_SECURITY, &layout, reply, &current, capacity).into_bytes()
    }

    fn reply(data: Vec<u8>) -> ObjectReply {
        ObjectReply {
            data: ReplyData::Bytes(data.into()),
            attributes: vec![Attribute::new(1, 9, vec![7; 3])],
            ..ObjectReply::default()
        }
    }

    #[test]
    fn retrieved_attributes_are_at_their_offset_with_zeros_before_them() {
        let bytes = encoded(&read(10, 32, 64), reply(vec![1; 5]), 1_000);
        assert_eq!(bytes[..5], [1; 5]);
        assert_eq!(bytes[5..32], [0; 27]);
        assert_eq!(bytes[32], 9);
        assert_eq!(bytes.len(), 32 + 8 + 24);
    }

    #[test]
    fn a_buffer_never_exceeds_what_the_initiator_can_take() {
        let far = encoded(&read(10, 1 << 40, 64), reply(vec![1; 5]), 1_000);
        assert_eq!(far.len(), 1_000, "zeros in place of the rest");
        let cut = encoded(&read(10, 32, 64), reply(vec![1; 5]), 3);
        assert_eq!(cut.len(), 3);
        let list = encoded(&read(10, 32, 16), reply(vec![1; 5]), 1_000);
        assert_eq!(list.len(), 32 + 16, "cut to the allocation length");
    }

    #[test]
    fn selections_of_the_current_command_keep_their_places() {
        let one = |page, number| AttributeSelection::One(AttributeId::new(page, number));
        let object = ObjectAddress::new(0x10000, 0x10001);
        let mut request = ObjectRequest::new(Command::GetAttributes { object });
        request.get = vec![one(CURRENT_COMMAND, 4), one(1, 9), one(CURRENT_COMMAND, 3)];
        let current = CurrentSelections::take(&mut request);
        assert_eq!(request.get, [one(1, 9)]);
        let mut reply = reply(Vec::new());
        reply.current.object = object;
        current.put(&mut reply, &IntegrityCheckValue::ZERO);
        let ids: Vec<_> =
            reply.attributes.iter().map(|a| (a.id.page, a.id.number, a.value.len())).collect();
        assert_eq!(ids, [(CURRENT_COMMAND, 4, 8), (1, 9, 3), (CURRENT_COMMAND, 3, 8)]);
        assert_eq!(reply.attributes[0].value.as_ref(), 0x10001u64.to_be_bytes());
    }

    #[test]
    fn attributes_that_do_not_fit_an_object_of_a_list_are_left_out() {
        let attributes = (0..2).map(|n| Attribute::new(1, n, vec![0; 40_000])).collect();
        let object = ListedObject { id: 5, object_type: ObjectType::UserObject, attributes };
        let list = ListRequest { with_attributes: true, ..ListRequest::default() };
        let list_data = ObjectList { objects: vec![object], ..ObjectList::default() };
        let command = Command::List { partition: 1, list };
        let data = command_data(&command, ReplyData::List(list_data), u64::MAX);
        assert_eq!(data.len(), 24 + 16 + 16 + 40_000);
    }
}
