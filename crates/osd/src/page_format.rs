//! Attributes pages in page format: the values of a page at fixed offsets (OSD-2, 7.1.3).

use bytes::Bytes;
use object::{AttributeId, PageFamily, StandardAttribute, attributes_of, family_of};

use crate::bytes::{put, u32_at};

/// Length in bytes of a page's header: page number and page length.
const HEADER: usize = 8;
/// The number of the attribute "timestamp bypass", which is not a part of its page's format.
const BYPASS: u32 = 0xffff_fffe;

/// Encodes a page in page format; `value` returns the value of an attribute. A page that is
/// unknown, or whose attributes have no fixed lengths, becomes a null page: its length field is
/// zero.
#[must_use]
pub fn encode_page(page: u32, mut value: impl FnMut(AttributeId) -> Option<Bytes>) -> Vec<u8> {
    let mut bytes = page.to_be_bytes().to_vec();
    bytes.extend_from_slice(&[0; 4]);
    for (attribute, length) in layout(page).unwrap_or_default() {
        let at = bytes.len();
        bytes.resize(at + length, 0);
        if let Some(value) = value(attribute.id)
            && value.len() == length
        {
            put(&mut bytes, at, &value);
        }
    }
    let length = (bytes.len() - HEADER) as u32;
    put(&mut bytes, 4, &length.to_be_bytes());
    bytes
}

/// Parses a page in page format. Returns `None` for a null page, for a page without a format, and
/// for bytes that end within the page.
#[must_use]
pub fn parse_page(bytes: &Bytes) -> Option<Vec<(AttributeId, Bytes)>> {
    let page = u32_at(bytes, 0)?;
    let mut at = HEADER;
    let mut values = Vec::new();
    for (attribute, length) in layout(page)? {
        let value = (bytes.len() >= at + length).then(|| bytes.slice(at..at + length))?;
        values.push((attribute.id, value));
        at += length;
    }
    (u32_at(bytes, 4)? as usize == at - HEADER).then_some(values)
}

/// Returns the attributes of a page in the order of page format, with their lengths in bytes.
fn layout(page: u32) -> Option<Vec<(&'static StandardAttribute, usize)>> {
    let PageFamily::Of(object_type) = family_of(page) else { return None };
    let in_page =
        |attribute: &&StandardAttribute| attribute.id.page == page && attribute.id.number != BYPASS;
    let attributes = attributes_of(object_type).iter().filter(in_page);
    let sized = attributes.map(|attribute| Some((attribute, usize::from(attribute.length?))));
    sized.collect::<Option<Vec<_>>>().filter(|attributes| !attributes.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(page: u32) -> Vec<u8> {
        let mut next = 0;
        encode_page(page, |id| {
            next += 1;
            let length = object::standard_attribute(id)?.length?;
            Some(Bytes::from(vec![next; length.into()]))
        })
    }

    #[test]
    fn pages_have_the_lengths_of_osd_2() {
        assert_eq!(counted(0x9000_0002)[..8], [0x90, 0, 0, 2, 0, 0, 0, 0x24], "root quotas");
        assert_eq!(counted(0x3000_0002)[4..8], [0, 0, 0, 0x1c], "partition quotas");
        assert_eq!(counted(0x3)[4..8], [0, 0, 0, 0x1e], "user object timestamps");
        assert_eq!(counted(0x6000_0003)[4..8], [0, 0, 0, 0x1e], "collection timestamps");
    }

    #[test]
    fn pages_without_a_format_are_null_pages() {
        for page in [0x1, 0x9000_0001, 0x7777, 0x1_0000, 0xffff_ffff] {
            let bytes = counted(page);
            assert_eq!(bytes, [page.to_be_bytes(), [0; 4]].concat(), "{page:x}");
            assert_eq!(parse_page(&Bytes::from(bytes)), None);
        }
    }

    #[test]
    fn a_page_decodes_to_the_encoded_values() {
        let bytes = Bytes::from(counted(0x3000_0002));
        let values = parse_page(&bytes).unwrap();
        assert_eq!(values.len(), 4);
        assert_eq!(values[3], (AttributeId::new(0x3000_0002, 0x1_0081), Bytes::from(vec![4; 4])));
        assert_eq!(parse_page(&bytes.slice(..bytes.len() - 1)), None);
    }
}
