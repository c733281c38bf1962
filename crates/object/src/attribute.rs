//! Attributes: numbered values in numbered pages (OSD-2, 4.7).

use bytes::Bytes;

/// Maximum length of the value of an attribute, in bytes (OSD-2, 7.1: FFFFh is not a length).
pub const MAX_VALUE_LENGTH: usize = 0xfffe;

/// Names an attribute by the number of its page and by its number in the page.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AttributeId {
    pub page: u32,
    pub number: u32,
}

impl AttributeId {
    #[must_use]
    pub const fn new(page: u32, number: u32) -> Self {
        Self { page, number }
    }
}

/// An attribute with its value. An empty value means that the attribute is not defined; setting an empty value removes
/// the attribute.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Attribute {
    pub id: AttributeId,
    /// The value, at most [`MAX_VALUE_LENGTH`] bytes.
    pub value: Bytes,
}

impl Attribute {
    #[must_use]
    pub fn new(page: u32, number: u32, value: impl Into<Bytes>) -> Self {
        Self { id: AttributeId::new(page, number), value: value.into() }
    }
}

/// Selects attributes that a command returns.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum AttributeSelection {
    One(AttributeId),
    /// Every defined attribute of one page, returned as a list of attributes.
    Page(u32),
    /// One page in page format: a fixed layout of its values (OSD-2, 7.1.3).
    PageFormat(u32),
    /// Every defined attribute of every page.
    All,
    /// The attribute with this number of every page that has it.
    NumberInAllPages(u32),
}
