//! The parts of a command that do not fit its CDB: the descriptors of the CDB continuation segment
//! (OSD-2, 5.4).

use bytes::Bytes;

use crate::{AttributeId, ObjectAddress, Timestamp};

/// The content of the CDB continuation segment of a command: at most one descriptor.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Continuation {
    #[default]
    None,
    /// The ranges of the object that READ and WRITE transfer, in the order of the data.
    ScatterGather(Vec<ScatterEntry>),
    /// The criteria that QUERY applies to the members of a collection.
    Query(Query),
    /// The object that READ MAPS AND COMPARE compares with the object in the CDB.
    UserObject(ObjectAddress),
    /// The object that COPY USER OBJECTS copies.
    CopySource(CopySource),
}

/// A range of bytes of a user object, one entry of a scatter/gather list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ScatterEntry {
    pub start: u64,
    pub length: u64,
}

/// The criteria of QUERY, and how many of them an object must meet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Query {
    pub match_type: QueryMatch,
    pub criteria: Vec<QueryCriterion>,
}

/// QUERY TYPE: whether an object must meet all criteria of a query, or any.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum QueryMatch {
    Any = 0,
    All = 1,
}

/// An object meets a criterion if the attribute is defined and `minimum <= value <= maximum`. The
/// values are compared as byte strings; an empty bound does not limit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct QueryCriterion {
    pub id: AttributeId,
    pub minimum: Bytes,
    pub maximum: Bytes,
}

impl QueryCriterion {
    #[must_use]
    pub fn is_met_by(&self, value: &[u8]) -> bool {
        !value.is_empty()
            && (self.minimum.is_empty() || self.minimum.as_ref() <= value)
            && (self.maximum.is_empty() || value <= self.maximum.as_ref())
    }
}

impl Query {
    /// Returns true if an object matches the query. `value` returns the value of an attribute of the object, or `None`
    /// if the attribute is not defined. A query without criteria matches every object.
    pub fn is_met(&self, mut value: impl FnMut(AttributeId) -> Option<Bytes>) -> bool {
        let mut meets = |criterion: &QueryCriterion| {
            value(criterion.id).is_some_and(|value| criterion.is_met_by(&value))
        };
        match self.match_type {
            _ if self.criteria.is_empty() => true,
            QueryMatch::Any => self.criteria.iter().any(&mut meets),
            QueryMatch::All => self.criteria.iter().all(&mut meets),
        }
    }
}

/// The object that COPY USER OBJECTS copies, and how.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CopySource {
    pub object: ObjectAddress,
    /// CPY_ATTR: the drive also copies the attributes of the object.
    pub with_attributes: bool,
    /// FREEZE: the drive refuses later changes of the copy.
    pub freeze: bool,
    /// TIME OF DUPLICATION, the point in time of the copied content; zero for the present time.
    pub time: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn criterion(number: u32, minimum: &'static [u8], maximum: &'static [u8]) -> QueryCriterion {
        let id = AttributeId::new(0x1_0000, number);
        let (minimum, maximum) = (Bytes::from_static(minimum), Bytes::from_static(maximum));
        QueryCriterion { id, minimum, maximum }
    }

    #[test]
    fn a_query_compares_values_as_byte_strings_and_ignores_undefined_attributes() {
        let value = |id: AttributeId| match id.number {
            1 => Some(Bytes::from_static(b"m")),
            2 => Some(Bytes::from_static(&[0, 5])),
            _ => None,
        };
        let cases = [
            (QueryMatch::All, vec![criterion(1, b"a", b"z"), criterion(2, &[0, 5], &[0, 5])], true),
            (QueryMatch::All, vec![criterion(1, b"a", b"z"), criterion(3, b"", b"")], false),
            (QueryMatch::Any, vec![criterion(1, b"n", b"z"), criterion(2, b"", &[0, 4])], false),
            (QueryMatch::Any, vec![criterion(1, b"n", b""), criterion(2, &[0, 4], b"")], true),
            (QueryMatch::All, vec![], true),
        ];
        for (match_type, criteria, expected) in cases {
            let query = Query { match_type, criteria };
            assert_eq!(query.is_met(value), expected, "{query:?}");
        }
    }
}
