//! Connections that have not logged in hold little memory: measured, by every byte that this
//! process allocates while 500 of them send slowly whatever takes most.

#[path = "server/client.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod client;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    io::IoSlice,
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use iscsi::{
    Cid, Isid, Itt, Pdu, Serial,
    codec::{Digests, Output},
    pdu::{LoginRequest, Stage},
};
use target::Settings;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use client::{Client, TARGET, memory, server, soon};

/// Counts the bytes in use, and remembers the most.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let before = IN_USE.fetch_add(layout.size(), Relaxed);
        MOST.fetch_max(before + layout.size(), Relaxed);
        // SAFETY: the caller's promise, unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise, unchanged.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A login request whose text is `length` bytes long and goes on.
fn request(text: impl Into<Bytes>) -> Vec<u8> {
    let request = LoginRequest {
        continues: true,
        current_stage: Stage::Operational,
        isid: Isid([0x80, 0, 0, 0, 0, 1]),
        itt: Itt(1),
        cid: Cid(1),
        cmd_sn: Serial(1),
        text: text.into(),
        ..LoginRequest::default()
    };
    let mut output = Output::default();
    output.push(Pdu::LoginRequest(request), Digests::default());
    let mut bytes = Vec::new();
    while !output.is_empty() {
        let mut slices = [IoSlice::new(&[]); 8];
        let used = output.slices(&mut slices);
        slices[..used].iter().for_each(|slice| bytes.extend_from_slice(slice));
        output.advance(slices[..used].iter().map(|slice| slice.len()).sum());
    }
    bytes
}

/// Connects, lets everybody send each piece before anybody sends the next, and gives the most
/// bytes that were in use for each connection.
async fn most_held(address: SocketAddr, pieces: &[&[u8]]) -> usize {
    let before = IN_USE.load(Relaxed);
    MOST.store(before, Relaxed);
    let mut streams = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        streams.push(soon(TcpStream::connect(address)).await.unwrap());
    }
    for piece in pieces {
        for stream in &mut streams {
            // One that was closed holds nothing.
            let _ = stream.write_all(piece).await;
        }
        all_was_read(address).await;
    }
    let most = (MOST.load(Relaxed) - before) / CONNECTIONS;
    for mut stream in streams {
        drop(stream.shutdown().await);
        let mut rest = Vec::new();
        let _ = soon(stream.read_to_end(&mut rest)).await;
    }
    most
}

/// There is one thread, and a login takes several turns of its loop: each of them serves every
/// socket that has something to read.
async fn all_was_read(address: SocketAddr) {
    for _ in 0..4 {
        Client::log_in(address, 1).await.settle().await;
    }
}

#[tokio::test]
async fn a_connection_that_has_not_logged_in_holds_at_most_64_kib() {
    let settings = Settings {
        max_logins: 1000,
        max_logins_per_address: 1000,
        max_connections: 1000,
        ..Settings::default()
    };
    let (_server, address) = server(settings, memory()).await;
    all_was_read(address).await;
    let idle = most_held(address, &[]).await;

    // Byte by byte at first, then in pieces; the end never comes.
    let longest = request(vec![b'x'; 8192]);
    let mut slowly: Vec<&[u8]> = longest[..4].chunks(1).collect();
    slowly.extend(longest[4..8000].chunks(1999));
    let half = most_held(address, &slowly).await;

    // Text that goes on and on, in the longest pieces there are.
    let mut text = format!("InitiatorName=iqn.2026-11.a:b\0TargetName={TARGET}\0X-text=");
    text.push_str(&"x".repeat(8192 - text.len()));
    let first = request(text);
    let endless = most_held(address, &[&first, &longest, &longest, &longest, &longest]).await;

    // Many keys, whose answers are long.
    let keys: String = (0..700).map(|n| format!("X-{n:03}=1\0")).collect();
    let keys = request(keys);
    let answered = most_held(address, &[&keys, &keys, &keys]).await;

    let garbage = most_held(address, &[&[0xff; 20_000], b"GET / HTTP/1.1\r\n\r\n"]).await;

    let all = [idle, half, endless, answered, garbage];
    println!(
        "bytes for each connection: idle, half a request, endless text, keys, garbage: {all:?}"
    );
    assert!(all.iter().all(|&bytes| bytes <= 64 << 10), "{all:?}");
    assert!(half >= 8000, "what was sent is held: {half}");
}

const CONNECTIONS: usize = 500;
