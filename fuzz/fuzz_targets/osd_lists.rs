//! Parses the attributes lists and the CDB continuation segment of a hostile OSD initiator, and the lists and maps of a
//! hostile drive. Accepted attributes, segments and maps must be the same after they are written and read again; a list
//! of objects must not have more entries than its limit.
#![no_main]

use bytes::Bytes;
use fuzz::Choices;
use libfuzzer_sys::fuzz_target;
use osd::{ContinuationSegment, ListKind, ServiceAction, list, parse_list, parse_map};

const MOST: usize = 100;

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let kind = choices.byte();
    let bytes = Bytes::copy_from_slice(choices.rest());
    match kind % 6 {
        0 => {
            if let Ok(selections) = list::parse_selections(&bytes, MOST) {
                let written = list::encode_selections(&selections);
                assert_eq!(list::parse_selections(&written, MOST), Ok(selections));
            }
        }
        1 => {
            if let Ok(attributes) = list::parse_attributes(&bytes, MOST) {
                let written = Bytes::from(list::encode_attributes(&attributes));
                assert_eq!(list::parse_attributes(&written, MOST), Ok(attributes));
            }
        }
        2 => {
            if let Ok(objects) = list::parse_objects(&bytes, MOST) {
                assert!(objects.len() <= MOST);
            }
        }
        3 => {
            let action = if kind & 0x80 == 0 { ServiceAction::Read } else { ServiceAction::Query };
            if let Ok(segment) = ContinuationSegment::parse(&bytes, action, MOST) {
                let written = Bytes::from(segment.encode());
                assert_eq!(ContinuationSegment::parse(&written, action, MOST), Ok(segment));
            }
        }
        4 => {
            let kinds = [ListKind::Partitions, ListKind::Collections, ListKind::UserObjects, ListKind::Query];
            if let Ok(parsed) = parse_list(&bytes, kinds[usize::from(kind) / 6 % 4], MOST) {
                assert!(parsed.objects.len() <= bytes.len() / 8);
            }
        }
        _ => {
            if let Some(runs) = parse_map(&bytes) {
                assert_eq!(parse_map(&osd::encode_map(&runs)), Some(runs));
            }
        }
    }
});
