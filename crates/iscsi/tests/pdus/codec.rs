//! Tests the decoder with raw bytes: any split of the stream, digests, and invalid streams.

use std::io::IoSlice;

use bytes::{BufMut, Bytes};
use iscsi::{
    Itt, Pdu, Serial, Ttt,
    codec::{CodecError, Decoder, Digests, PduFrame, PduOutput},
    pdu::{DataOut, NopOut},
};
use proptest::prelude::*;
use scsi::Lun;

const BOTH: Digests = Digests { header: true, data: true };

/// Builds the bytes of a PDU by hand. The CRC is computed by a crate that the decoder does not use.
fn wire(ahs: &[u8], data: &[u8], digests: Digests) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    bytes[0] = 0x01;
    bytes[4] = (ahs.len() / 4) as u8;
    bytes[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    bytes[16] = data.len() as u8;
    bytes.extend(ahs);
    if digests.header {
        let crc = crc32c::crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
    }
    if !data.is_empty() {
        let start = bytes.len();
        bytes.extend(data);
        bytes.resize(start + data.len().next_multiple_of(4), 0);
        if digests.data {
            let crc = crc32c::crc32c(&bytes[start..]);
            bytes.extend(crc.to_le_bytes());
        }
    }
    bytes
}

/// Feeds `bytes` in pieces of the given sizes, used cyclically, and takes every complete frame.
fn decode(
    decoder: &mut Decoder,
    mut bytes: &[u8],
    pieces: &[usize],
) -> Result<Vec<PduFrame>, CodecError> {
    let mut frames = Vec::new();
    let mut pieces = pieces.iter().copied().cycle();
    while !bytes.is_empty() {
        let mut buffer = decoder.buffer();
        assert!(buffer.remaining_mut() > 0);
        let count = pieces.next().unwrap().max(1).min(bytes.len()).min(buffer.remaining_mut());
        buffer.put_slice(&bytes[..count]);
        bytes = &bytes[count..];
        while let Some(frame) = decoder.next()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

fn decoder(digests: Digests) -> Decoder {
    let mut decoder = Decoder::new(16 * 1024, 8192);
    decoder.configure(64 * 1024, 256 * 1024, digests);
    decoder
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn digests() -> impl Strategy<Value = Digests> {
    (any::<bool>(), any::<bool>()).prop_map(|(header, data)| Digests { header, data })
}

/// A regression test. Data that waits is charged only for its own length. A piece of 16 KiB used to
/// keep 64 KiB of the receive buffer in memory, or the 256 KiB buffer of an earlier, longer data
/// segment.
#[test]
fn a_frame_reports_whether_its_data_keeps_a_larger_buffer() {
    let shared = |lengths: &[usize]| {
        let stream: Vec<u8> =
            lengths.iter().flat_map(|&n| wire(&[], &pattern(n), Digests::default())).collect();
        let mut decoder = decoder(Digests::default());
        let mut shared = Vec::new();
        let mut bytes = &stream[..];
        while !bytes.is_empty() {
            let mut buffer = decoder.buffer();
            let count = bytes.len().min(buffer.remaining_mut());
            buffer.put_slice(&bytes[..count]);
            bytes = &bytes[count..];
            // Drop each PDU after the check, so that the decoder can reuse its buffer.
            while let Some(frame) = decoder.next().unwrap() {
                shared.push(frame.is_shared);
            }
        }
        shared
    };
    assert_eq!(shared(&[512, 16_384]), [true, true]);
    assert_eq!(shared(&[200_000]), [false]);
    assert_eq!(shared(&[200_000, 190_000, 180_000]), [false; 3]);
    assert_eq!(shared(&[250_000, 17_000, 17_000, 17_000, 17_000])[1..], [true; 4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_split_gives_the_same_frames(
        lengths in prop::collection::vec(
            prop_oneof![Just(0), 1usize..600, Just(4096), 16_000usize..17_000, 60_000usize..140_000],
            1..12,
        ),
        ahs_words in 0usize..60,
        digests in digests(),
        pieces in prop::collection::vec(prop_oneof![1usize..64, 1usize..5000, 1usize..200_000], 1..20),
    ) {
        let ahs = pattern(ahs_words * 4);
        let stream: Vec<u8> =
            lengths.iter().flat_map(|&n| wire(&ahs, &pattern(n), digests)).collect();
        let frames = decode(&mut decoder(digests), &stream, &pieces).unwrap();
        prop_assert_eq!(frames.len(), lengths.len());
        for (frame, length) in frames.iter().zip(lengths) {
            prop_assert_eq!(&frame.data[..], &pattern(length)[..]);
            prop_assert_eq!(&frame.ahs[..], &ahs[..]);
            prop_assert!(!frame.data_digest_error);
        }
    }

    #[test]
    fn hostile_bytes_never_panic_and_hold_no_more_than_is_allowed(
        bytes in prop::collection::vec(any::<u8>(), 0..4000),
        small_lengths in any::<bool>(),
        digests in digests(),
        pieces in prop::collection::vec(1usize..3000, 1..5),
    ) {
        let mut bytes = bytes;
        if small_lengths {
            bytes.chunks_mut(48).for_each(|header| header.iter_mut().skip(4).take(3).for_each(|b| *b = 0));
        }
        let mut decoder = Decoder::new(16 * 1024, 8192);
        decoder.configure(16 * 1024, 8192, digests);
        let _ = decode(&mut decoder, &bytes, &pieces);
        prop_assert!(decoder.held() <= 32 * 1024, "{}", decoder.held());
    }

    #[test]
    fn pushed_pdus_are_sent_unchanged_however_the_output_is_written(
        lengths in prop::collection::vec(prop_oneof![Just(0), 1usize..600, 4090usize..5000, 16_000usize..70_000], 1..8),
        digests in digests(),
        writes in prop::collection::vec(1usize..30_000, 1..20),
        pieces in prop::collection::vec(1usize..30_000, 1..10),
    ) {
        let mut output = PduOutput::default();
        let pdus: Vec<Pdu> = lengths.iter().enumerate().map(|(i, &length)| data_out(i as u32, length)).collect();
        let mut stream = Vec::new();
        let mut writes = writes.iter().copied().cycle();
        for pdu in &pdus {
            output.push(pdu.clone(), digests);
            write_some(&mut output, &mut stream, writes.next().unwrap());
        }
        while !output.is_empty() {
            write_some(&mut output, &mut stream, writes.next().unwrap());
        }
        prop_assert_eq!(output.len(), 0);
        let frames = decode(&mut decoder(digests), &stream, &pieces).unwrap();
        let back: Vec<Pdu> = frames
            .into_iter()
            .map(|frame| {
                assert!(!frame.data_digest_error);
                Pdu::parse(&frame.bhs, &frame.ahs, frame.data).unwrap()
            })
            .collect();
        prop_assert_eq!(back, pdus);
    }
}

fn data_out(number: u32, length: usize) -> Pdu {
    Pdu::DataOut(DataOut {
        is_final: true,
        lun: Lun(0),
        itt: Itt(number),
        ttt: Ttt::NONE,
        exp_stat_sn: Serial(7),
        data_sn: number,
        buffer_offset: 512,
        data: pattern(length).into(),
    })
}

/// Removes up to `count` bytes from the queue, as a vectored write to a socket would.
fn write_some(output: &mut PduOutput, to: &mut Vec<u8>, count: usize) {
    let mut slices = [IoSlice::new(&[]); 3];
    let used = output.slices(&mut slices);
    let mut taken = 0;
    for slice in &slices[..used] {
        assert!(!slice.is_empty());
        let n = slice.len().min(count - taken);
        to.extend_from_slice(&slice[..n]);
        taken += n;
    }
    output.advance(taken);
}

#[test]
fn small_pdus_share_the_buffer_and_large_ones_do_not() {
    let mut decoder = decoder(Digests::default());
    let stream = [
        wire(&[], &pattern(512), Digests::default()),
        wire(&[], &pattern(131_072), Digests::default()),
    ];
    let frames = decode(&mut decoder, &stream.concat(), &[65_536]).unwrap();
    assert_eq!(frames.len(), 2);
    // The decoder holds the shared buffer and the buffer of the large segment with its tail, but no
    // third buffer.
    assert!(decoder.held() <= 65_536 + 131_072 + 1024, "{}", decoder.held());
}

#[test]
fn the_memory_of_a_large_segment_is_used_again() {
    let mut decoder = decoder(BOTH);
    let stream = wire(&[], &pattern(131_072), BOTH);
    let mut places = Vec::new();
    for _ in 0..4 {
        let frames = decode(&mut decoder, &stream, &[50_000]).unwrap();
        places.push(frames[0].data.as_ptr());
    }
    assert!(places.iter().all(|place| *place == places[0]));
}

#[test]
fn an_idle_decoder_holds_no_buffer_and_can_continue() {
    let mut decoder = decoder(BOTH);
    let stream = [wire(&[], &pattern(131_072), BOTH), wire(&[], b"small", BOTH)].concat();
    for _ in 0..2 {
        assert_eq!(decode(&mut decoder, &stream, &[9999]).unwrap().len(), 2);
        decoder.rest();
        assert_eq!(decoder.held(), 0);
    }
    decode(&mut decoder, &stream[..60], &[60]).unwrap();
    decoder.rest();
    assert_eq!(
        decode(&mut decoder, &stream[60..], &[9999]).unwrap().len(),
        2,
        "in the middle of one"
    );
}

#[test]
fn a_frame_that_is_held_is_not_written_over() {
    let mut decoder = decoder(Digests::default());
    let mut held = Vec::new();
    for round in 0..200u32 {
        let data = vec![round as u8; 3000];
        held.extend(decode(&mut decoder, &wire(&[], &data, Digests::default()), &[1024]).unwrap());
    }
    for (round, frame) in held.iter().enumerate() {
        assert!(frame.data.iter().all(|byte| *byte == round as u8));
    }
}

#[test]
fn a_wrong_header_digest_ends_the_stream() {
    for at in [0, 20, 47, 48, 51] {
        let mut bytes = wire(&[], b"data", BOTH);
        bytes[at] ^= 0x10;
        assert_eq!(
            decode(&mut decoder(BOTH), &bytes, &[4096]).unwrap_err(),
            CodecError::HeaderDigest
        );
    }
}

#[test]
fn a_wrong_data_digest_marks_the_frame_and_the_stream_continues() {
    for length in [5, 4096, 100_000] {
        for at in [52, 52 + length - 1, 52 + length] {
            let mut bytes = wire(&[], &pattern(length), BOTH);
            bytes[at] ^= 1; // the first and last byte of the data; padding or digest
            bytes.extend(wire(&[], b"next", BOTH));
            let frames = decode(&mut decoder(BOTH), &bytes, &[3000]).unwrap();
            assert!(frames[0].data_digest_error, "length {length}, byte {at}");
            assert_eq!(frames[0].data.len(), length);
            assert!(!frames[1].data_digest_error);
            assert_eq!(frames[1].data, Bytes::from_static(b"next"));
        }
    }
}

#[test]
fn lengths_beyond_the_limit_end_the_stream_before_memory_is_allocated() {
    let mut decoder = Decoder::new(16 * 1024, 8192);
    let mut bytes = wire(&[], &[], Digests::default());
    bytes[5..8].copy_from_slice(&[0xff; 3]);
    let error = decode(&mut decoder, &bytes, &[48]).unwrap_err();
    assert_eq!(error, CodecError::DataSegmentLength { length: 0xff_ffff, limit: 8192 });
    assert!(decoder.held() <= 16 * 1024);

    let bytes = wire(&[0; 260], &[], Digests::default());
    let error = decode(&mut Decoder::new(16 * 1024, 8192), &bytes, &[48]).unwrap_err();
    assert_eq!(error, CodecError::AhsLength(260));
}

#[test]
fn a_segment_of_exactly_the_limit_is_accepted() {
    let data = pattern(8192);
    let frames =
        decode(&mut Decoder::new(16 * 1024, 8192), &wire(&[], &data, Digests::default()), &[999])
            .unwrap();
    assert_eq!(frames[0].data, data);
}

#[test]
fn adjacent_headers_are_one_slice() {
    let mut output = PduOutput::default();
    for itt in 0..10 {
        output.push(nop(itt, 0), Digests::default());
    }
    let mut slices = [IoSlice::new(&[]); 64];
    assert_eq!(output.slices(&mut slices), 1);
    assert_eq!(slices[0].len(), 480);
    output.push(nop(10, 4096), Digests::default());
    let mut slices = [IoSlice::new(&[]); 64];
    assert_eq!(output.slices(&mut slices), 2);
}

#[test]
fn output_that_never_drains_does_not_keep_written_bytes() {
    let mut output = PduOutput::default();
    output.push(nop(0, 0), BOTH);
    for itt in 0..100_000 {
        output.push(nop(itt, 0), BOTH);
        output.advance(52);
    }
    assert_eq!(output.len(), 52);
    let mut slices = [IoSlice::new(&[]); 4];
    let used = output.slices(&mut slices);
    assert_eq!(slices[..used].iter().map(|s| s.len()).sum::<usize>(), 52);
}

fn nop(itt: u32, length: usize) -> Pdu {
    Pdu::NopOut(NopOut {
        immediate: true,
        lun: Lun(0),
        itt: Itt(itt),
        ttt: Ttt::NONE,
        cmd_sn: Serial(1),
        exp_stat_sn: Serial(1),
        data: pattern(length).into(),
    })
}
