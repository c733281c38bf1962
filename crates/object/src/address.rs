//! The identifiers of objects (OSD-2, 4.6).

use std::fmt;

/// The smallest PARTITION_ID, USER_OBJECT_ID and COLLECTION_ID that a store assigns. Smaller
/// identifiers belong to the root and to well-known collections.
pub const FIRST_IDENTIFIER: u64 = 0x1_0000;

/// The pair of identifiers that names an object. User objects and collections of a partition share
/// one space of identifiers, so the pair alone does not say which of the two an object is.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ObjectAddress {
    /// PARTITION_ID; zero for the root.
    pub partition: u64,
    /// USER_OBJECT_ID or COLLECTION_ID; zero for the root and for a partition.
    pub object: u64,
}

impl ObjectAddress {
    pub const ROOT: Self = Self { partition: 0, object: 0 };

    #[must_use]
    pub const fn new(partition: u64, object: u64) -> Self {
        Self { partition, object }
    }

    #[must_use]
    pub const fn partition(partition: u64) -> Self {
        Self { partition, object: 0 }
    }

    #[must_use]
    pub const fn is_root(self) -> bool {
        self.partition == 0 && self.object == 0
    }

    #[must_use]
    pub const fn is_partition(self) -> bool {
        self.partition != 0 && self.object == 0
    }

    /// Returns the type of the object, if the identifiers alone determine it: root or partition.
    #[must_use]
    pub const fn known_type(self) -> Option<ObjectType> {
        match (self.partition, self.object) {
            (0, 0) => Some(ObjectType::Root),
            (_, 0) => Some(ObjectType::Partition),
            _ => None,
        }
    }
}

/// Prints the identifiers in hexadecimal, as tools of OSD do: `10000h/10001h`.
impl fmt::Display for ObjectAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known_type() {
            Some(ObjectType::Root) => f.write_str("root"),
            Some(_) => write!(f, "{:X}h", self.partition),
            None => write!(f, "{:X}h/{:X}h", self.partition, self.object),
        }
    }
}

/// The four kinds of object, with the codes of the OBJECT TYPE field (OSD-2, 4.9).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum ObjectType {
    Root = 0x01,
    Partition = 0x02,
    Collection = 0x40,
    UserObject = 0x80,
}

impl ObjectType {
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x01 => Self::Root,
            0x02 => Self::Partition,
            0x40 => Self::Collection,
            0x80 => Self::UserObject,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_tell_root_and_partition_from_the_rest() {
        assert_eq!(ObjectAddress::ROOT.known_type(), Some(ObjectType::Root));
        assert_eq!(ObjectAddress::partition(5).known_type(), Some(ObjectType::Partition));
        assert_eq!(ObjectAddress::new(5, 6).known_type(), None);
        assert_eq!(ObjectAddress::new(0x10000, 0x1000f).to_string(), "10000h/1000Fh");
    }

    #[test]
    fn codes_of_object_types_convert_both_ways() {
        let types = [
            ObjectType::Root,
            ObjectType::Partition,
            ObjectType::Collection,
            ObjectType::UserObject,
        ];
        for object_type in types {
            assert_eq!(ObjectType::from_code(object_type as u8), Some(object_type));
        }
        assert_eq!(ObjectType::from_code(0), None);
    }
}
