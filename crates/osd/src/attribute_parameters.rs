//! The get and set attributes parameters of a CDB, bytes 52 to 79 (OSD-2, 5.2.6).

use object::AttributeId;

use crate::{
    bytes::{put, u16_at, u32_at},
    offset::{self, UNUSED},
    refusal::Refusal,
};

/// Offset of the get and set attributes parameters in the CDB, in bytes.
pub const PARAMETERS: usize = 52;
/// Maximum length in bytes of an attribute's value in the CDB itself (CDBFMT 1).
pub const MAX_VALUE_IN_CDB: usize = 18;

/// The attributes that a command sets and returns, and where in the buffers their lists are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttributeParameters {
    /// CDBFMT 1: sets one attribute, whose value is in the CDB.
    SetOne { id: AttributeId, length: u8, value: [u8; MAX_VALUE_IN_CDB] },
    /// CDBFMT 2: returns one attributes page in page format, and sets one attribute.
    Page { get: Option<PageToGet>, set: Option<ValueInBuffer> },
    /// CDBFMT 3: returns the attributes of the list `get`, and sets those of the list `set`.
    Lists { get: Option<ListInBuffer>, retrieved: Option<Space>, set: Option<ListInBuffer> },
}

/// An attributes page that the command returns in page format.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PageToGet {
    pub page: u32,
    pub space: Space,
}

/// The part of the Data-In buffer in which the drive returns attributes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Space {
    pub offset: u64,
    pub allocation_length: u32,
}

/// An attribute to set whose value is in the Data-Out buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ValueInBuffer {
    pub id: AttributeId,
    pub length: u32,
    pub offset: u64,
}

/// The length and the offset of an attributes list in the Data-Out buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ListInBuffer {
    pub length: u32,
    pub offset: u64,
}

impl AttributeParameters {
    /// The parameters of a command that neither sets nor returns an attribute.
    pub const NONE: Self = Self::Lists { get: None, retrieved: None, set: None };

    /// Parses the parameters of a CDB of 236 bytes. `format` is CDBFMT, 0 to 3.
    ///
    /// # Errors
    /// 5/24/00 with a pointer to the field: a reserved format, an attribute that cannot be named, a
    /// value longer than the CDB can hold, a length or an offset that is no multiple of 8.
    pub fn parse(format: u8, cdb: &[u8]) -> Result<Self, Refusal> {
        let word = |at: usize| u32_at(cdb, PARAMETERS + at).unwrap_or(0);
        match format {
            1 => Self::parse_one(cdb),
            2 => {
                let get = (word(0) != 0).then_some(word(0));
                let get = get.map(|page| {
                    let space = Space { offset: used(cdb, 8)?, allocation_length: word(4) };
                    Ok::<_, Refusal>(PageToGet { page, space })
                });
                let set = (word(12) != 0).then_some(word(12));
                let set = set.map(|page| {
                    let id = AttributeId::new(page, word(16));
                    let offset = if word(20) == 0 { 0 } else { used(cdb, 24)? };
                    Ok::<_, Refusal>(ValueInBuffer { id, length: word(20), offset })
                });
                Ok(Self::Page { get: get.transpose()?, set: set.transpose()? })
            }
            3 => {
                // An initiator may leave the offsets of empty lists zero (libosd does).
                let list = |length: usize, offset: usize| match word(length) {
                    0 => Ok(None),
                    bytes => {
                        let offset = used(cdb, offset)?;
                        aligned(length, bytes)?;
                        Ok::<_, Refusal>(Some(ListInBuffer { length: bytes, offset }))
                    }
                };
                let get = list(0, 4)?;
                let set = list(16, 20)?;
                let retrieved = match (word(8), get) {
                    (0, _) => None,
                    // Retrieved attributes without a list of attributes to retrieve stay empty.
                    (_, None) if word(12) == UNUSED => None,
                    (bytes, _) => {
                        aligned(8, bytes)?;
                        Some(Space { offset: used(cdb, 12)?, allocation_length: bytes })
                    }
                };
                Ok(Self::Lists { get, retrieved, set })
            }
            _ => Err(Refusal::field(11)),
        }
    }

    fn parse_one(cdb: &[u8]) -> Result<Self, Refusal> {
        let word = |at: usize| u32_at(cdb, PARAMETERS + at).unwrap_or(0);
        let id = AttributeId::new(word(0), word(4));
        let length = u16_at(cdb, PARAMETERS + 8).unwrap_or(0);
        if id.page == 0 || id.page == u32::MAX {
            return Err(Refusal::field(PARAMETERS as u16));
        }
        if id.number == u32::MAX {
            return Err(Refusal::field(PARAMETERS as u16 + 4));
        }
        if usize::from(length) > MAX_VALUE_IN_CDB {
            return Err(Refusal::field(PARAMETERS as u16 + 8));
        }
        let mut value = [0; MAX_VALUE_IN_CDB];
        let length = length as u8;
        let stored = &cdb[PARAMETERS + 10..PARAMETERS + 10 + usize::from(length)];
        value[..usize::from(length)].copy_from_slice(stored);
        Ok(Self::SetOne { id, length, value })
    }

    /// Returns CDBFMT, the format of the parameters, 1 to 3.
    #[must_use]
    pub const fn format(&self) -> u8 {
        match self {
            Self::SetOne { .. } => 1,
            Self::Page { .. } => 2,
            Self::Lists { .. } => 3,
        }
    }

    /// Writes the parameters into a CDB of 236 bytes, without the format.
    ///
    /// # Panics
    /// If an offset has no encoding: see [`offset::next`].
    pub fn write(&self, cdb: &mut [u8]) {
        let mut word = |at: usize, value: u32| put(cdb, PARAMETERS + at, &value.to_be_bytes());
        let place = |at: u64| offset::encode(at).expect("a multiple of 8");
        match *self {
            Self::SetOne { id, length, value } => {
                word(0, id.page);
                word(4, id.number);
                put(cdb, PARAMETERS + 8, &u16::from(length).to_be_bytes());
                put(cdb, PARAMETERS + 10, &value);
            }
            Self::Page { get, set } => {
                word(8, get.map_or(UNUSED, |get| place(get.space.offset)));
                if let Some(get) = get {
                    word(0, get.page);
                    word(4, get.space.allocation_length);
                }
                word(24, set.map_or(UNUSED, |set| place(set.offset)));
                if let Some(set) = set {
                    word(12, set.id.page);
                    word(16, set.id.number);
                    word(20, set.length);
                }
            }
            Self::Lists { get, retrieved, set } => {
                word(0, get.map_or(0, |list| list.length));
                word(4, get.map_or(UNUSED, |list| place(list.offset)));
                word(8, retrieved.map_or(0, |space| space.allocation_length));
                word(12, retrieved.map_or(UNUSED, |space| place(space.offset)));
                word(16, set.map_or(0, |list| list.length));
                word(20, set.map_or(UNUSED, |list| place(list.offset)));
            }
        }
    }

    /// Returns the part of the Data-In buffer for retrieved attributes; `None` if there is none.
    #[must_use]
    pub const fn space(&self) -> Option<Space> {
        match self {
            Self::SetOne { .. } => None,
            Self::Page { get: Some(get), .. } => Some(get.space),
            Self::Page { get: None, .. } => None,
            Self::Lists { retrieved, .. } => *retrieved,
        }
    }
}

/// Returns the buffer offset in the field at `at` of the parameters. Refuses an unused field.
fn used(cdb: &[u8], at: usize) -> Result<u64, Refusal> {
    let field = u32_at(cdb, PARAMETERS + at).unwrap_or(UNUSED);
    let refusal = Refusal::field((PARAMETERS + at) as u16);
    offset::decode(field).map_err(|_| refusal)?.ok_or(refusal)
}

/// Refuses a length in the field at `at` of the parameters that is no multiple of 8.
fn aligned(at: usize, length: u32) -> Result<(), Refusal> {
    if length.is_multiple_of(8) { Ok(()) } else { Err(Refusal::field((PARAMETERS + at) as u16)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cdb_with(parameters: &AttributeParameters) -> [u8; 236] {
        let mut cdb = [0; 236];
        parameters.write(&mut cdb);
        cdb
    }

    #[test]
    fn every_format_decodes_to_the_encoded_value() {
        let id = AttributeId::new(0x1_0000, 7);
        let space = Space { offset: 4096, allocation_length: 432 };
        let all = [
            AttributeParameters::NONE,
            AttributeParameters::SetOne {
                id,
                length: 3,
                value: {
                    let mut value = [0; MAX_VALUE_IN_CDB];
                    value[..3].copy_from_slice(b"abc");
                    value
                },
            },
            AttributeParameters::Page {
                get: Some(PageToGet { page: 1, space }),
                set: Some(ValueInBuffer { id, length: 5, offset: 8 }),
            },
            AttributeParameters::Page { get: None, set: None },
            AttributeParameters::Lists {
                get: Some(ListInBuffer { length: 16, offset: 4168 }),
                retrieved: Some(space),
                set: Some(ListInBuffer { length: 32, offset: 0 }),
            },
        ];
        for parameters in all {
            let cdb = cdb_with(&parameters);
            assert_eq!(AttributeParameters::parse(parameters.format(), &cdb), Ok(parameters));
        }
    }

    #[test]
    fn empty_lists_may_have_offsets_of_zero() {
        assert_eq!(AttributeParameters::parse(3, &[0; 236]), Ok(AttributeParameters::NONE));
    }

    #[test]
    fn parameters_that_cannot_be_met_are_refused_at_their_field() {
        let refused = |format, at: usize, value: &[u8]| {
            let mut cdb = cdb_with(&AttributeParameters::NONE);
            put(&mut cdb, at, value);
            AttributeParameters::parse(format, &cdb).map_err(|refusal| refusal.pointer())
        };
        assert_eq!(refused(0, 52, &[0]), Err(Some(11)));
        let mut one = [0u8; 12];
        one[..8].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 9]);
        one[9] = 19;
        assert_eq!(refused(1, 52, &one), Err(Some(60)), "a value of 19 bytes");
        assert_eq!(refused(1, 52, &[0; 8]), Err(Some(52)), "page 0");
        assert_eq!(refused(1, 52, &[0, 0, 0, 1, 255, 255, 255, 255]), Err(Some(56)));
        assert_eq!(refused(3, 52, &[0, 0, 0, 12, 0xb0, 0, 0, 1]), Err(Some(52)), "length 12");
        assert_eq!(refused(3, 52, &[0, 0, 0, 16, 0xa0, 0, 0, 1]), Err(Some(56)), "exponent -6");
        assert_eq!(refused(3, 68, &[0, 0, 0, 16]), Err(Some(72)), "a set list without offset");
    }
}
