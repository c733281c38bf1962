//! Parses additional header segments of a command, with false lengths and types. If a segment is accepted, its encoding
//! must parse to the same value.
#![no_main]

use bytes::Bytes;
use fuzz::Choices;
use iscsi::Pdu;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let mut bhs = [0; 48];
    // Choose a SCSI command most of the time, since only commands may have additional header
    // segments.
    bhs[0] = if choices.byte() == 0xff { choices.byte() } else { 0x01 };
    bhs[1] = choices.byte();
    bhs[20..24].copy_from_slice(&choices.word().to_be_bytes());
    bhs[32..].iter_mut().for_each(|byte| *byte = choices.byte());
    let mut ahs = Vec::new();
    while !choices.is_empty() && ahs.len() < 1016 {
        // The length field is right, off by a few bytes, or random.
        let length = choices.byte() & 0x3f;
        let near = choices.number_near(u32::from(length)) as u16;
        ahs.extend(near.to_be_bytes());
        ahs.push(choices.byte() & 0x3);
        (0..length).for_each(|_| ahs.push(choices.byte()));
        ahs.resize(ahs.len().next_multiple_of(4), 0);
    }
    ahs.truncate(1020);
    bhs[4] = (ahs.len() / 4) as u8;
    let Ok(pdu) = Pdu::parse(&bhs, &ahs, Bytes::new()) else { return };
    let (bhs, ahs, data) = pdu.clone().encode();
    let data: Bytes = data.concat().into();
    assert_eq!(Pdu::parse(&bhs, &ahs, data), Ok(pdu));
});
