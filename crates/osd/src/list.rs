//! Attributes lists (OSD-2, 7.1.4).
//!
//! A list has a header of 8 bytes (type, three reserved bytes, length of the entries) and entries
//! that are padded to multiples of 8 bytes. If the length in the header is zero, as the initiator
//! of Linux leaves it, the list has the length in the CDB.

use bytes::{Bytes, BytesMut};
use object::{Attribute, AttributeId, AttributeSelection, ListedObject, MAX_VALUE_LENGTH};

use crate::{
    bytes::{padding, u16_at, u32_at, u64_at},
    refusal::Refusal,
};

const HEADER: usize = 8;
/// LIST TYPE of a list of attributes to return: page and number of each.
const RETRIEVE: u8 = 0x1;
/// LIST TYPE of a list of attributes with values.
const VALUES: u8 = 0x9;
/// LIST TYPE of a list of objects, each with attributes and values.
const OBJECTS: u8 = 0xe;
/// Length in bytes of an attribute's entry before the value.
const ENTRY: usize = 16;
/// Length in bytes of an object's entry before its attributes.
const OBJECT_ENTRY: usize = 16;

/// Encodes a list of attributes that the drive is to return.
#[must_use]
pub fn encode_selections(selections: &[AttributeSelection]) -> Vec<u8> {
    let mut bytes = vec![RETRIEVE, 0, 0, 0, 0, 0, 0, 0];
    for selection in selections {
        let (page, number) = match *selection {
            AttributeSelection::One(id) => (id.page, id.number),
            AttributeSelection::Page(page) => (page, u32::MAX),
            AttributeSelection::All => (u32::MAX, u32::MAX),
            AttributeSelection::NumberInAllPages(number) => (u32::MAX, number),
            // A page in page format has no entry in a list: the CDB names it (CDBFMT 2).
            AttributeSelection::PageFormat(_) => continue,
        };
        bytes.extend_from_slice(&page.to_be_bytes());
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    with_length(bytes)
}

/// Parses a list of attributes to return with at most `max_entries` entries.
///
/// # Errors
/// 5/1A/00 for a list that ends within its header or an entry, or has too many entries; 5/26/00
/// for another type of list.
pub fn parse_selections(
    list: &[u8],
    max_entries: usize,
) -> Result<Vec<AttributeSelection>, Refusal> {
    let body = body(list, RETRIEVE)?;
    if !body.len().is_multiple_of(8) || body.len() / 8 > max_entries {
        return Err(Refusal::ParameterListLength);
    }
    let selection = |entry: &[u8]| match (u32_at(entry, 0), u32_at(entry, 4)) {
        (Some(u32::MAX), Some(u32::MAX)) => AttributeSelection::All,
        (Some(u32::MAX), Some(number)) => AttributeSelection::NumberInAllPages(number),
        (Some(page), Some(u32::MAX)) => AttributeSelection::Page(page),
        (page, number) => AttributeSelection::One(AttributeId::new(
            page.unwrap_or_default(),
            number.unwrap_or_default(),
        )),
    };
    Ok(body.chunks_exact(8).map(selection).collect())
}

/// Encodes a list of attributes with their values.
///
/// # Panics
/// If a value is longer than [`MAX_VALUE_LENGTH`].
#[must_use]
pub fn encode_attributes(attributes: &[Attribute]) -> Vec<u8> {
    let mut bytes = vec![VALUES, 0, 0, 0, 0, 0, 0, 0];
    attributes.iter().for_each(|attribute| push_attribute(&mut bytes, attribute));
    with_length(bytes)
}

/// Parses a list of attributes with values, with at most `max_entries` entries. The values share
/// memory with `list`.
///
/// # Errors
/// 5/1A/00 for a list that ends within its header, an entry or a value, or has too many entries;
/// 5/26/00 for another type of list, and for a value of FFFFh bytes.
pub fn parse_attributes(list: &Bytes, max_entries: usize) -> Result<Vec<Attribute>, Refusal> {
    let length = body(list, VALUES)?.len();
    let mut rest = list.slice(HEADER..HEADER + length);
    let mut attributes = Vec::new();
    while !rest.is_empty() {
        if attributes.len() == max_entries {
            return Err(Refusal::ParameterListLength);
        }
        attributes.push(take_attribute(&mut rest)?);
    }
    Ok(attributes)
}

/// Encodes a list of several objects with their attributes.
///
/// # Panics
/// If a value is longer than [`MAX_VALUE_LENGTH`], or the attributes of one object take more than
/// 65,535 bytes.
#[must_use]
pub fn encode_objects(objects: &[ListedObject]) -> Vec<u8> {
    let mut bytes = vec![OBJECTS, 0, 0, 0, 0, 0, 0, 0];
    objects.iter().for_each(|object| push_object(&mut bytes, object));
    with_length(bytes)
}

/// Parses a list of several objects with their attributes.
///
/// # Errors
/// See [`parse_attributes`]; 5/26/00 also for an unknown object type.
pub fn parse_objects(list: &Bytes, max_entries: usize) -> Result<Vec<ListedObject>, Refusal> {
    let length = body(list, OBJECTS)?.len();
    let mut rest = list.slice(HEADER..HEADER + length);
    let mut objects = Vec::new();
    while !rest.is_empty() {
        if objects.len() == max_entries {
            return Err(Refusal::ParameterListLength);
        }
        objects.push(take_object(&mut rest, max_entries)?);
    }
    Ok(objects)
}

/// Appends the entry of an object: identifier, type, and a list of its attributes without header.
pub(crate) fn push_object(bytes: &mut Vec<u8>, object: &ListedObject) {
    let mut entries = Vec::new();
    object.attributes.iter().for_each(|attribute| push_attribute(&mut entries, attribute));
    let length = u16::try_from(entries.len()).expect("the attributes of an object are bounded");
    bytes.extend_from_slice(&object.id.to_be_bytes());
    bytes.extend_from_slice(&[object.object_type as u8, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&entries);
}

/// Removes the entry of an object from the start of `rest`.
pub(crate) fn take_object(rest: &mut Bytes, max_entries: usize) -> Result<ListedObject, Refusal> {
    let head = (u64_at(rest, 0), rest.get(8).copied(), u16_at(rest, 14));
    let (Some(id), Some(code), Some(length)) = head else {
        return Err(Refusal::ParameterListLength);
    };
    let object_type = object::ObjectType::from_code(code).ok_or(Refusal::ParameterList(8))?;
    let end = OBJECT_ENTRY + usize::from(length);
    if rest.len() < end {
        return Err(Refusal::ParameterListLength);
    }
    let mut entries = rest.split_to(end).slice(OBJECT_ENTRY..);
    let mut attributes = Vec::new();
    while !entries.is_empty() {
        if attributes.len() == max_entries {
            return Err(Refusal::ParameterListLength);
        }
        attributes.push(take_attribute(&mut entries)?);
    }
    Ok(ListedObject { id, object_type, attributes })
}

fn push_attribute(bytes: &mut Vec<u8>, attribute: &Attribute) {
    let length = attribute.value.len();
    assert!(length <= MAX_VALUE_LENGTH, "a value of {length} bytes");
    bytes.extend_from_slice(&attribute.id.page.to_be_bytes());
    bytes.extend_from_slice(&attribute.id.number.to_be_bytes());
    bytes.extend_from_slice(&[0; 6]);
    bytes.extend_from_slice(&(length as u16).to_be_bytes());
    bytes.extend_from_slice(&attribute.value);
    bytes.resize(bytes.len() + padding(length), 0);
}

/// Removes an attribute with its value from the start of `rest`.
fn take_attribute(rest: &mut Bytes) -> Result<Attribute, Refusal> {
    let head = (u32_at(rest, 0), u32_at(rest, 4), u16_at(rest, 14));
    let (Some(page), Some(number), Some(length)) = head else {
        return Err(Refusal::ParameterListLength);
    };
    let length = usize::from(length);
    if length > MAX_VALUE_LENGTH {
        return Err(Refusal::ParameterList(14));
    }
    let end = ENTRY + length;
    if rest.len() < end {
        return Err(Refusal::ParameterListLength);
    }
    // The padding of the last entry may be missing.
    let value = rest.slice(ENTRY..end);
    let _ = rest.split_to((end + padding(length)).min(rest.len()));
    Ok(Attribute { id: AttributeId::new(page, number), value })
}

/// Checks that a list has the type `list_type`, and returns its entries.
fn body(list: &[u8], list_type: u8) -> Result<&[u8], Refusal> {
    let (Some(first), Some(length)) = (list.first(), u32_at(list, 4)) else {
        return Err(Refusal::ParameterListLength);
    };
    if first & 0x0f != list_type {
        return Err(Refusal::ParameterList(0));
    }
    match length as usize {
        0 => Ok(&list[HEADER..]),
        length => list.get(HEADER..HEADER + length).ok_or(Refusal::ParameterListLength),
    }
}

/// Writes the length of the entries into the header of a list.
fn with_length(mut bytes: Vec<u8>) -> Vec<u8> {
    let length = (bytes.len() - HEADER) as u32;
    bytes[4..HEADER].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Copies `data` into memory that attribute values can share without further copies.
#[must_use]
pub fn shared(data: &[u8]) -> Bytes {
    BytesMut::from(data).freeze()
}

#[cfg(test)]
mod tests {
    use object::ObjectType;
    use proptest::prelude::*;

    use super::*;

    fn attributes() -> Vec<Attribute> {
        vec![
            Attribute::new(1, 0x82, vec![0, 0, 0, 0, 0, 0, 16, 0]),
            Attribute::new(0x1_0000, 1, vec![7; 3]),
            Attribute::new(0x1_0000, 2, Vec::new()),
        ]
    }

    #[test]
    fn values_are_padded_to_eight_bytes() {
        let bytes = encode_attributes(&attributes());
        assert_eq!(bytes.len(), 8 + 24 + 24 + 16);
        assert_eq!(bytes[..8], [9, 0, 0, 0, 0, 0, 0, 64]);
        assert_eq!(bytes[8 + 24 + 14..8 + 24 + 24], [0, 3, 7, 7, 7, 0, 0, 0, 0, 0]);
        assert_eq!(parse_attributes(&shared(&bytes), 3), Ok(attributes()));
    }

    #[test]
    fn a_list_whose_header_has_no_length_is_as_long_as_the_cdb_says() {
        let mut bytes = encode_attributes(&attributes());
        bytes[4..8].fill(0);
        assert_eq!(parse_attributes(&shared(&bytes), 3), Ok(attributes()));
        let mut bytes = encode_selections(&[AttributeSelection::All]);
        bytes[4..8].fill(0);
        assert_eq!(parse_selections(&bytes, 1), Ok(vec![AttributeSelection::All]));
    }

    #[test]
    fn selections_name_pages_numbers_and_everything() {
        let all = [
            AttributeSelection::One(AttributeId::new(1, 2)),
            AttributeSelection::Page(3),
            AttributeSelection::NumberInAllPages(9),
            AttributeSelection::All,
        ];
        let bytes = encode_selections(&all);
        assert_eq!(bytes[16..24], [0, 0, 0, 3, 255, 255, 255, 255]);
        assert_eq!(parse_selections(&bytes, 4), Ok(all.to_vec()));
        assert_eq!(parse_selections(&bytes, 3), Err(Refusal::ParameterListLength), "too many");
    }

    #[test]
    fn lists_that_lie_about_their_length_are_refused() {
        let bytes = encode_attributes(&attributes());
        let parse = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = bytes.clone();
            change(&mut bytes);
            parse_attributes(&shared(&bytes), 9)
        };
        let too_short = Err(Refusal::ParameterListLength);
        assert_eq!(parse(&|list| list.truncate(7)), too_short, "within the header");
        assert_eq!(parse(&|list| list[7] = 65), too_short, "longer than the CDB says");
        assert_eq!(parse(&|list| list[8 + 14] = 1), too_short, "a value of 264 bytes");
        assert_eq!(parse(&|list| list[7] = 60), too_short, "within the last entry");
        assert_eq!(parse(&|list| list[0] = 1), Err(Refusal::ParameterList(0)), "another type");
        let long = |list: &mut Vec<u8>| list[8 + 14..8 + 16].fill(0xff);
        assert_eq!(parse(&long), Err(Refusal::ParameterList(14)), "a value of FFFFh bytes");
    }

    #[test]
    fn lists_of_objects_decode_to_the_encoded_objects() {
        let objects = [
            ListedObject {
                id: 0x1_0000,
                object_type: ObjectType::UserObject,
                attributes: attributes(),
            },
            ListedObject {
                id: 0x1_0001,
                object_type: ObjectType::Collection,
                attributes: Vec::new(),
            },
        ];
        let bytes = encode_objects(&objects);
        assert_eq!(parse_objects(&shared(&bytes), 3), Ok(objects.to_vec()));
        let mut unknown = bytes.clone();
        unknown[16] = 3;
        assert_eq!(parse_objects(&shared(&unknown), 3), Err(Refusal::ParameterList(8)));
        let cut = shared(&bytes[..bytes.len() - 1]);
        assert_eq!(parse_objects(&cut, 3), Err(Refusal::ParameterListLength));
    }

    proptest! {
        #[test]
        fn hostile_lists_end_in_values_or_a_refusal(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let list = shared(&bytes);
            for list_type in [RETRIEVE, VALUES, OBJECTS] {
                let mut typed = bytes.clone();
                if let Some(first) = typed.first_mut() {
                    *first = list_type;
                }
                let typed = shared(&typed);
                let _ = parse_selections(&typed, 1000);
                let _ = parse_objects(&typed, 1000);
                if let Ok(attributes) = parse_attributes(&typed, 1000) {
                    let total: usize = attributes.iter().map(|a| a.value.len()).sum();
                    prop_assert!(total <= bytes.len());
                }
            }
            let _ = parse_attributes(&list, 1000);
        }
    }
}
