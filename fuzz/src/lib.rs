//! What the fuzz targets share: choices read from the input, PDUs in and out of a machine.

use std::io::IoSlice;

use bytes::{BufMut, Bytes};
use iscsi::{
    Pdu,
    codec::{Decoder, Digests, PduFrame, PduOutput},
};

/// The fuzzer's input as a sequence of choices; zeros when it is used up.
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    /// From the whole input.
    #[must_use]
    pub fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// All that is left.
    #[must_use]
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// A bit of the next byte.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    /// Two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Four bytes.
    pub fn word(&mut self) -> u32 {
        u32::from(self.short()) << 16 | u32::from(self.short())
    }

    /// A number near `near` nearly always, else any.
    pub fn number_near(&mut self, near: u32) -> u32 {
        match self.byte() {
            0xff => self.word(),
            byte @ 0x80.. => near.wrapping_add((byte as i8) as u32),
            0x40..=0x7f => near,
            byte => near.wrapping_add(u32::from(byte)),
        }
    }

    /// A length in bytes that a small transfer may have: often whole blocks.
    pub fn length(&mut self) -> u32 {
        match self.byte() {
            0xff => self.word(),
            byte @ 0x80.. => u32::from(byte & 0x7f) * 512,
            byte => u32::from(byte),
        }
    }
}

/// A frame as the decoder would make it of this PDU.
#[must_use]
pub fn frame(pdu: Pdu) -> PduFrame {
    let (bhs, ahs, data) = pdu.encode();
    let data = data.concat().into();
    PduFrame { bhs, ahs: Bytes::copy_from_slice(&ahs), data, is_shared: false, data_digest_error: false }
}

/// All that a machine has to say. That it parses is part of the test.
pub fn drain(output: &mut PduOutput, digests: Digests, max_data_segment_length: u32) -> Vec<Pdu> {
    let mut decoder = Decoder::new(65_536, max_data_segment_length);
    decoder.configure(65_536, max_data_segment_length, digests);
    let mut pdus = Vec::new();
    while !output.is_empty() {
        let mut slices = [IoSlice::new(&[]); 8];
        let used = output.slices(&mut slices);
        let bytes: Vec<u8> =
            slices[..used].iter().flat_map(|slice| slice.iter().copied()).collect();
        output.advance(bytes.len());
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let mut buffer = decoder.buffer();
            let count = buffer.remaining_mut().min(rest.len());
            buffer.put_slice(&rest[..count]);
            rest = &rest[count..];
            while let Some(frame) = decoder.next().expect("a machine keeps to the lengths") {
                pdus.push(Pdu::parse(&frame.bhs, &frame.ahs, frame.data).expect("and the formats"));
            }
        }
    }
    pdus
}
