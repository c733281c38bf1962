//! The attributes that OSD-2 defines (OSD-2, 7.2), as far as Forebay knows them.

use crate::{AttributeId, CURRENT_COMMAND, ObjectType};

/// An attribute that OSD-2 defines, with the length of its value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StandardAttribute {
    pub id: AttributeId,
    /// Length of the value in bytes; `None` if it varies.
    pub length: Option<u16>,
    pub access: AttributeAccess,
    /// The attribute's name in OSD-2, in lower case.
    pub name: &'static str,
}

/// Whether clients may change the value of an attribute.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttributeAccess {
    /// The drive determines the value, and clients cannot set it.
    ReadOnly,
    /// Clients may set the value.
    Settable,
}

/// Returns the attributes that OSD-2 defines for objects of this type, ascending by page and number, without those of
/// the current command page.
#[must_use]
pub const fn attributes_of(object_type: ObjectType) -> &'static [StandardAttribute] {
    match object_type {
        ObjectType::Root => ROOT,
        ObjectType::Partition => PARTITION,
        ObjectType::Collection => COLLECTION,
        ObjectType::UserObject => USER_OBJECT,
    }
}

/// Returns the attribute that OSD-2 defines with this page and number.
#[must_use]
pub fn standard_attribute(id: AttributeId) -> Option<&'static StandardAttribute> {
    [ROOT, PARTITION, COLLECTION, USER_OBJECT, CURRENT]
        .into_iter()
        .flatten()
        .find(|attribute| attribute.id == id)
}

const fn fixed(page: u32, number: u32, length: u16, name: &'static str) -> StandardAttribute {
    let id = AttributeId::new(page, number);
    StandardAttribute { id, length: Some(length), access: AttributeAccess::ReadOnly, name }
}

const fn varying(page: u32, number: u32, name: &'static str) -> StandardAttribute {
    StandardAttribute { length: None, ..fixed(page, number, 0, name) }
}

const fn settable(attribute: StandardAttribute) -> StandardAttribute {
    StandardAttribute { access: AttributeAccess::Settable, ..attribute }
}

const ROOT: &[StandardAttribute] = &[
    fixed(0x9000_0001, 0x3, 20, "OSD system ID"),
    fixed(0x9000_0001, 0x4, 8, "vendor identification"),
    fixed(0x9000_0001, 0x5, 16, "product identification"),
    fixed(0x9000_0001, 0x6, 32, "product model"),
    fixed(0x9000_0001, 0x7, 4, "product revision level"),
    varying(0x9000_0001, 0x8, "product serial number"),
    settable(varying(0x9000_0001, 0x9, "OSD name")),
    fixed(0x9000_0001, 0xa, 4, "maximum CDB continuation length"),
    fixed(0x9000_0001, 0x80, 8, "total capacity"),
    fixed(0x9000_0001, 0x81, 8, "used capacity"),
    fixed(0x9000_0001, 0xc0, 8, "number of partitions"),
    fixed(0x9000_0001, 0x100, 6, "clock"),
    fixed(0x9000_0001, 0x110, 1, "default isolation method"),
    fixed(0x9000_0001, 0x111, 32, "supported isolation methods"),
    fixed(0x9000_0001, 0x120, 8, "data atomicity guarantee"),
    fixed(0x9000_0001, 0x121, 8, "data atomicity alignment"),
    fixed(0x9000_0001, 0x122, 8, "attributes atomicity guarantee"),
    fixed(0x9000_0001, 0x123, 1, "data and attributes atomicity multiplier"),
    fixed(0x9000_0001, 0x1c1, 8, "maximum snapshots count"),
    fixed(0x9000_0001, 0x1c2, 8, "maximum clones count"),
    fixed(0x9000_0001, 0x1cc, 8, "maximum branch depth"),
    settable(fixed(0x9000_0002, 0x1, 8, "default maximum user object length")),
    settable(fixed(0x9000_0002, 0x1_0001, 8, "partition capacity quota")),
    settable(fixed(0x9000_0002, 0x1_0002, 8, "partition object count")),
    settable(fixed(0x9000_0002, 0x1_0081, 4, "partition collections per user object")),
    settable(fixed(0x9000_0002, 0x2_0002, 8, "partition count")),
    fixed(0x9000_0003, 0x2, 6, "attributes accessed time"),
    fixed(0x9000_0003, 0x3, 6, "attributes modified time"),
    settable(fixed(0x9000_0003, 0xffff_fffe, 1, "timestamp bypass")),
    settable(fixed(0x9000_0005, 0x1, 1, "default security method")),
    fixed(0x9000_0005, 0x2, 6, "oldest valid nonce limit"),
    fixed(0x9000_0005, 0x3, 6, "newest valid nonce limit"),
    settable(fixed(0x9000_0005, 0x6, 1, "partition default security method")),
    fixed(0x9000_0005, 0x7, 2, "supported security methods"),
    settable(fixed(0x9000_0005, 0x9, 6, "adjustable clock")),
    varying(0x9000_0005, 0x7ffd, "master key identifier"),
    varying(0x9000_0005, 0x7ffe, "root key identifier"),
    fixed(0x9000_0005, 0x8000_0001, 1, "supported integrity check value algorithm 1"),
    fixed(0x9000_0005, 0x8000_0002, 1, "supported integrity check value algorithm 2"),
    fixed(0x9000_0005, 0x8000_0003, 1, "supported integrity check value algorithm 3"),
    settable(fixed(0x9000_0005, 0x4000_0001, 4, "policy access tag")),
];

const PARTITION: &[StandardAttribute] = &[
    fixed(0x3000_0001, 0x1, 8, "partition ID"),
    settable(varying(0x3000_0001, 0x9, "username")),
    fixed(0x3000_0001, 0x81, 8, "used capacity"),
    fixed(0x3000_0001, 0x84, 8, "used capacity increment"),
    fixed(0x3000_0001, 0xc1, 8, "number of collections and user objects"),
    settable(fixed(0x3000_0002, 0x1, 8, "default maximum user object length")),
    settable(fixed(0x3000_0002, 0x1_0001, 8, "capacity quota")),
    settable(fixed(0x3000_0002, 0x1_0002, 8, "object count")),
    settable(fixed(0x3000_0002, 0x1_0081, 4, "collections per user object")),
    fixed(0x3000_0003, 0x1, 6, "created time"),
    fixed(0x3000_0003, 0x2, 6, "attributes accessed time"),
    fixed(0x3000_0003, 0x3, 6, "attributes modified time"),
    fixed(0x3000_0003, 0x4, 6, "data accessed time"),
    fixed(0x3000_0003, 0x5, 6, "data modified time"),
    settable(fixed(0x3000_0003, 0xffff_fffe, 1, "timestamp bypass")),
    settable(fixed(0x3000_0005, 0x1, 1, "default security method")),
    settable(fixed(0x3000_0005, 0x2, 6, "oldest valid nonce limit")),
    settable(fixed(0x3000_0005, 0x3, 6, "newest valid nonce limit")),
    fixed(0x3000_0005, 0x4, 2, "minimum working key nonce list depth"),
    settable(fixed(0x3000_0005, 0x5, 2, "frozen working key bit mask")),
    varying(0x3000_0005, 0x7fff, "partition key identifier"),
    settable(fixed(0x3000_0005, 0x4000_0001, 4, "policy access tag")),
    settable(fixed(0x3000_0005, 0x4000_0002, 4, "user object policy access tag")),
];

const COLLECTION: &[StandardAttribute] = &[
    fixed(0x6000_0001, 0x1, 8, "partition ID"),
    fixed(0x6000_0001, 0x2, 8, "collection object ID"),
    settable(varying(0x6000_0001, 0x9, "username")),
    fixed(0x6000_0001, 0xa, 1, "collection type"),
    fixed(0x6000_0001, 0x81, 8, "used capacity"),
    fixed(0x6000_0003, 0x1, 6, "created time"),
    fixed(0x6000_0003, 0x2, 6, "attributes accessed time"),
    fixed(0x6000_0003, 0x3, 6, "attributes modified time"),
    fixed(0x6000_0003, 0x4, 6, "data accessed time"),
    fixed(0x6000_0003, 0x5, 6, "data modified time"),
    fixed(0x6000_0004, 0x1, 1, "percent complete"),
    fixed(0x6000_0004, 0x2, 2, "active command status"),
    fixed(0x6000_0004, 0x3, 2, "ended command status"),
    varying(0x6000_0004, 0x4, "sense data"),
    fixed(0x6000_0004, 0x10, 8, "number of members"),
    fixed(0x6000_0004, 0x11, 8, "objects processed"),
    fixed(0x6000_0004, 0x12, 8, "newer objects skipped"),
    fixed(0x6000_0004, 0x13, 8, "missing objects skipped"),
    settable(fixed(0x6000_0005, 0x4000_0001, 4, "policy access tag")),
];

const USER_OBJECT: &[StandardAttribute] = &[
    fixed(0x1, 0x1, 8, "partition ID"),
    fixed(0x1, 0x2, 8, "user object ID"),
    settable(varying(0x1, 0x9, "username")),
    fixed(0x1, 0x81, 8, "used capacity"),
    settable(fixed(0x1, 0x82, 8, "user object logical length")),
    settable(fixed(0x2, 0x1, 8, "maximum user object length")),
    fixed(0x3, 0x1, 6, "created time"),
    fixed(0x3, 0x2, 6, "attributes accessed time"),
    fixed(0x3, 0x3, 6, "attributes modified time"),
    fixed(0x3, 0x4, 6, "data accessed time"),
    fixed(0x3, 0x5, 6, "data modified time"),
    settable(fixed(0x5, 0x4000_0001, 4, "policy access tag")),
];

const CURRENT: &[StandardAttribute] = &[
    fixed(CURRENT_COMMAND, 0x1, 32, "response integrity check value"),
    fixed(CURRENT_COMMAND, 0x2, 1, "object type"),
    fixed(CURRENT_COMMAND, 0x3, 8, "partition ID"),
    fixed(CURRENT_COMMAND, 0x4, 8, "collection object ID or user object ID"),
    fixed(CURRENT_COMMAND, 0x5, 8, "starting byte address of append"),
    fixed(CURRENT_COMMAND, 0x6, 8, "change in used capacity"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PageFamily, family_of};

    #[test]
    fn each_standard_attribute_is_in_a_page_of_its_object_and_occurs_once() {
        let types = [
            ObjectType::Root,
            ObjectType::Partition,
            ObjectType::Collection,
            ObjectType::UserObject,
        ];
        let mut ids = Vec::new();
        for object_type in types {
            for attribute in attributes_of(object_type) {
                let family = family_of(attribute.id.page);
                assert_eq!(family, PageFamily::Of(object_type), "{}", attribute.name);
                assert_eq!(standard_attribute(attribute.id), Some(attribute));
                ids.push(attribute.id);
            }
        }
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }

    #[test]
    fn a_logical_length_can_be_set_and_a_used_capacity_cannot() {
        let access =
            |number| standard_attribute(AttributeId::new(1, number)).map(|found| found.access);
        assert_eq!(access(0x82), Some(AttributeAccess::Settable));
        assert_eq!(access(0x81), Some(AttributeAccess::ReadOnly));
        assert_eq!(access(0x7777), None);
    }
}
