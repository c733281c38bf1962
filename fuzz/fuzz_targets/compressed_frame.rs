//! Unpacks a compressed byte stream of a hostile peer. The length of the input must bound the length of the unpacked
//! data, and data that we pack ourselves must be unpacked unchanged.
#![no_main]

use bytes::{BufMut, BytesMut};
use iscsi::keys::Compression;
use libfuzzer_sys::fuzz_target;
use transport::compressed_frame::{HEAD, Made, Packer, RAW_MAX, Unpacker};

fuzz_target!(|input: &[u8]| {
    let Some((&how, stream)) = input.split_first() else { return };
    let method = if how & 1 == 0 { Compression::Lz4 } else { Compression::Zstd };
    hostile(method, stream, usize::from(how >> 1) + 1);
    ours(method, stream, usize::from(how >> 1) * 500 + 1);
});

fn hostile(method: Compression, stream: &[u8], step: usize) {
    let (mut unpacker, mut waiting, mut room) = (Unpacker::new(method), BytesMut::new(), Vec::new());
    let mut total = 0;
    for piece in stream.chunks(step) {
        waiting.extend_from_slice(piece);
        loop {
            let has_output = unpacker.has_output(&waiting);
            room.clear();
            let unpacked = unpacker.unpack(&mut waiting, &mut (&mut room).limit(4096));
            let Ok(count) = unpacked else { return };
            assert_eq!((count, has_output), (room.len(), count > 0));
            total += count;
            if count == 0 {
                break;
            }
        }
        assert!(waiting.len() < HEAD + 65_536, "complete frames are unpacked");
    }
    // Each frame has a header, and unpacks to at most 64 KiB.
    assert!(total <= stream.len() / HEAD * 65_536 + stream.len());
}

fn ours(method: Compression, bytes: &[u8], length: usize) {
    let (mut packer, mut sent) = (Packer::new(method), Vec::new());
    // Repeat the data eight times, so that it can be compressed.
    let bytes = bytes.repeat(8);
    for part in bytes.chunks(length.min(RAW_MAX)) {
        if packer.pack(part.chunks(100), part.len(), &mut sent) == Made::Stored {
            sent.extend_from_slice(part);
        }
    }
    assert!(sent.len() <= bytes.len() + HEAD * bytes.len().div_ceil(length.min(RAW_MAX)));
    let (mut input, mut output) = (BytesMut::from(&sent[..]), Vec::new());
    let mut unpacker = Unpacker::new(method);
    while unpacker.has_output(&input) {
        unpacker.unpack(&mut input, &mut output).expect("we packed it");
    }
    assert!(input.is_empty() && output == bytes);
}
