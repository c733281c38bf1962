//! Functions that the fuzz targets share: they derive choices from the fuzzer's input, and exchange PDUs with a state
//! machine.

use std::io::IoSlice;

use bytes::{BufMut, Bytes};
use iscsi::{
    Pdu,
    codec::{Decoder, Digests, PduFrame, PduOutput},
};

/// Derives choices from the fuzzer's input, byte by byte. After the end of the input all choices
/// are zero.
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    #[must_use]
    pub fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// Returns the input bytes that were not used for choices.
    #[must_use]
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Returns the lowest bit of the next byte.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    pub fn word(&mut self) -> u32 {
        u32::from(self.short()) << 16 | u32::from(self.short())
    }

    /// Returns `near` or a number close to it, and in some cases a random number.
    pub fn number_near(&mut self, near: u32) -> u32 {
        match self.byte() {
            0xff => self.word(),
            byte @ 0x80.. => near.wrapping_add((byte as i8) as u32),
            0x40..=0x7f => near,
            byte => near.wrapping_add(u32::from(byte)),
        }
    }

    /// Returns a length in bytes: usually of a small transfer, often a multiple of 512.
    pub fn length(&mut self) -> u32 {
        match self.byte() {
            0xff => self.word(),
            byte @ 0x80.. => u32::from(byte & 0x7f) * 512,
            byte => u32::from(byte),
        }
    }
}

/// Returns `pdu` in the form in which the decoder would return it from its encoded bytes.
#[must_use]
pub fn frame(pdu: Pdu) -> PduFrame {
    let (bhs, ahs, data) = pdu.encode();
    let data = data.concat().into();
    PduFrame { bhs, ahs: Bytes::copy_from_slice(&ahs), data, is_shared: false, data_digest_error: false }
}

/// Removes and returns all PDUs in the output of a state machine. Panics if the output cannot be
/// decoded.
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
