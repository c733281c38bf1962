//! Decodes a byte stream of a hostile peer. If a PDU is accepted, its encoding, with digests, must decode to the same
//! PDU.
#![no_main]

use std::io::IoSlice;

use bytes::BufMut;
use iscsi::{
    Pdu,
    codec::{Decoder, Digests, PduOutput},
};
use libfuzzer_sys::fuzz_target;

const LIMIT: u32 = 262_144;
const BUFFER: usize = 65_536;

fuzz_target!(|input: &[u8]| {
    let Some((&chunk, stream)) = input.split_first() else { return };
    let mut decoder = Decoder::new(BUFFER, LIMIT);
    for piece in stream.chunks(usize::from(chunk) * 16 + 1) {
        let Some(pdus) = feed(&mut decoder, piece) else { return };
        for pdu in pdus.into_iter().flatten() {
            echo(pdu);
        }
        assert!(decoder.held() <= BUFFER + LIMIT as usize + 1024, "{} held", decoder.held());
    }
});

/// Feeds bytes into the decoder. Returns `None` if the stream cannot be decoded any more.
fn feed(decoder: &mut Decoder, mut piece: &[u8]) -> Option<Vec<Option<Pdu>>> {
    let mut pdus = Vec::new();
    while !piece.is_empty() {
        let mut buffer = decoder.buffer();
        let count = buffer.remaining_mut().min(piece.len());
        assert!(count > 0, "there is always room for a byte");
        buffer.put_slice(&piece[..count]);
        piece = &piece[count..];
        while let Some(frame) = decoder.next().ok()? {
            pdus.push(Pdu::parse(&frame.bhs, &frame.ahs, frame.data).ok());
        }
    }
    Some(pdus)
}

fn echo(pdu: Pdu) {
    let digests = Digests { header: true, data: true };
    let mut output = PduOutput::default();
    output.push(pdu.clone(), digests);
    let mut sent = Vec::new();
    while !output.is_empty() {
        let mut slices = [IoSlice::new(&[]); 3];
        let count = output.slices(&mut slices);
        let before = sent.len();
        slices[..count].iter().for_each(|slice| sent.extend_from_slice(slice));
        output.advance(sent.len() - before);
    }
    let mut decoder = Decoder::new(BUFFER, 1 << 24);
    decoder.configure(BUFFER, 1 << 24, digests);
    let arrived = feed(&mut decoder, &sent).expect("our own PDUs can be decoded");
    assert_eq!(arrived, [Some(pdu)]);
}
