//! The Data-In of LIST, LIST COLLECTION and QUERY (OSD-2, 6.18, 6.19, 6.26).

use bytes::Bytes;
use object::{ListedObject, ObjectList, ObjectType};

use crate::{
    bytes::{put, u32_at, u64_at},
    list::{push_object, take_object},
    refusal::Refusal,
};

/// Length in bytes of the header of a LIST or LIST COLLECTION.
const LIST_HEADER: usize = 24;
/// Length in bytes of the header of a QUERY's answer.
const QUERY_HEADER: usize = 12;
const ID: usize = 8;

/// LSTCHG: the listed objects have changed since the first part of the list.
const CHANGED: u8 = 0x02;

/// The command that a list answers. The header and the descriptor format depend on it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ListKind {
    /// The answer to LIST of the root: partitions.
    Partitions,
    /// The answer to LIST COLLECTION of a partition: its collections.
    Collections,
    /// The answer to LIST of a partition, or LIST COLLECTION of a collection: user objects.
    UserObjects,
    Query,
}

impl ListKind {
    /// Returns OBJECT DESCRIPTOR FORMAT, which says what each entry of the list contains.
    const fn format(self, with_attributes: bool) -> u8 {
        let format = match self {
            Self::Partitions => 0x01,
            Self::Collections => 0x11,
            Self::UserObjects | Self::Query => 0x21,
        };
        format + with_attributes as u8
    }

    const fn object_type(self) -> ObjectType {
        match self {
            Self::Partitions => ObjectType::Partition,
            Self::Collections => ObjectType::Collection,
            Self::UserObjects | Self::Query => ObjectType::UserObject,
        }
    }
}

/// Encodes a list. ADDITIONAL LENGTH counts the bytes of the complete list, of which `list` may be
/// the first part.
#[must_use]
pub fn encode_list(list: &ObjectList, kind: ListKind, with_attributes: bool) -> Vec<u8> {
    let format = kind.format(with_attributes) << 2;
    let mut bytes;
    if kind == ListKind::Query {
        bytes = vec![0; QUERY_HEADER];
        bytes[11] = format;
    } else {
        bytes = vec![0; LIST_HEADER];
        put(&mut bytes, 8, &list.continuation.to_be_bytes());
        put(&mut bytes, 16, &list.identifier.to_be_bytes());
        bytes[23] = format | if list.changed { CHANGED } else { 0 };
    }
    let additional = (bytes.len() as u64 - 8).saturating_add(list.total_bytes);
    put(&mut bytes, 0, &additional.to_be_bytes());
    for object in &list.objects {
        if with_attributes {
            push_object(&mut bytes, object);
        } else {
            bytes.extend_from_slice(&object.id.to_be_bytes());
        }
    }
    bytes
}

/// Parses a list of this kind, which may be cut at the allocation length: an incomplete object at
/// the end is left out.
///
/// # Errors
/// 5/26/00 for another descriptor format, 5/1A/00 for a list that ends within its header. A hostile
/// drive can send both.
pub fn parse_list(
    bytes: &Bytes,
    kind: ListKind,
    max_attributes: usize,
) -> Result<ObjectList, Refusal> {
    let header = if kind == ListKind::Query { QUERY_HEADER } else { LIST_HEADER };
    if bytes.len() < header {
        return Err(Refusal::ParameterListLength);
    }
    let field = bytes[header - 1];
    let with_attributes = match field >> 2 {
        format if format == kind.format(false) => false,
        format if format == kind.format(true) => true,
        _ => return Err(Refusal::ParameterList(header as u16 - 1)),
    };
    let additional = u64_at(bytes, 0).unwrap_or_default();
    let total_bytes = additional.saturating_sub(header as u64 - 8);
    let mut list = ObjectList { total_bytes, ..ObjectList::default() };
    if kind != ListKind::Query {
        list.continuation = u64_at(bytes, 8).unwrap_or_default();
        list.identifier = u32_at(bytes, 16).unwrap_or_default();
        list.changed = field & CHANGED != 0;
    }
    let present = usize::try_from(total_bytes).unwrap_or(usize::MAX).min(bytes.len() - header);
    let mut rest = bytes.slice(header..header + present);
    if with_attributes {
        while rest.len() >= 16 {
            match take_object(&mut rest, max_attributes) {
                Ok(object) => list.objects.push(object),
                Err(Refusal::ParameterListLength) => break,
                Err(refusal) => return Err(refusal),
            }
        }
    } else {
        let object_type = kind.object_type();
        let id = |id: &[u8]| ListedObject {
            id: u64_at(id, 0).unwrap_or_default(),
            object_type,
            attributes: Vec::new(),
        };
        list.objects.extend(rest.chunks_exact(ID).map(id));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use object::Attribute;
    use proptest::prelude::*;

    use super::*;

    fn object(id: u64, object_type: ObjectType, with_attributes: bool) -> ListedObject {
        let attributes = vec![Attribute::new(1, 0x82, vec![0; 8])];
        let attributes = if with_attributes { attributes } else { Vec::new() };
        ListedObject { id, object_type, attributes }
    }

    #[test]
    fn every_kind_of_list_decodes_to_the_encoded_one() {
        let kinds =
            [ListKind::Partitions, ListKind::Collections, ListKind::UserObjects, ListKind::Query];
        for kind in kinds {
            for with_attributes in [false, true] {
                let of = |id| object(id, kind.object_type(), with_attributes);
                let mut list = ObjectList {
                    objects: vec![of(0x10000), of(0x10001)],
                    total_bytes: if with_attributes { 80 } else { 16 },
                    ..ObjectList::default()
                };
                if kind != ListKind::Query {
                    (list.continuation, list.identifier, list.changed) = (0x10002, 5, true);
                }
                let bytes = Bytes::from(encode_list(&list, kind, with_attributes));
                assert_eq!(parse_list(&bytes, kind, 9), Ok(list));
            }
        }
    }

    #[test]
    fn a_list_cut_at_the_allocation_length_has_its_whole_objects() {
        let objects = vec![object(1, ObjectType::UserObject, false); 3];
        let list = ObjectList { objects, total_bytes: 800, ..ObjectList::default() };
        let bytes = encode_list(&list, ListKind::UserObjects, false);
        assert_eq!(bytes[..8], 816u64.to_be_bytes(), "the complete list");
        let cut = Bytes::copy_from_slice(&bytes[..bytes.len() - 3]);
        let parsed = parse_list(&cut, ListKind::UserObjects, 9).unwrap();
        assert_eq!((parsed.objects.len(), parsed.total_bytes), (2, 800));
    }

    #[test]
    fn a_list_of_another_kind_is_refused() {
        let bytes = encode_list(&ObjectList::default(), ListKind::Collections, false);
        let bytes = Bytes::from(bytes);
        assert_eq!(parse_list(&bytes, ListKind::UserObjects, 9), Err(Refusal::ParameterList(23)));
        assert_eq!(
            parse_list(&bytes.slice(..23), ListKind::Collections, 9),
            Err(Refusal::ParameterListLength)
        );
    }

    proptest! {
        #[test]
        fn a_hostile_list_ends_in_objects_or_a_refusal(bytes in prop::collection::vec(any::<u8>(), 24..200)) {
            for format in [0x21 << 2, 0x22 << 2] {
                let mut bytes = bytes.clone();
                bytes[23] = format;
                let list = parse_list(&Bytes::from(bytes), ListKind::UserObjects, 9);
                prop_assert!(list.is_err() || list.unwrap().objects.len() <= 22);
            }
        }
    }
}
