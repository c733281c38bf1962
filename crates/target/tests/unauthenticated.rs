//! Tests that connections which have not logged in use little memory. The tests count all allocated bytes of this
//! process while 500 connections slowly send the bytes that need most memory.

#[path = "../../transport/tests/certificates/mod.rs"]
mod certificates;
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
    codec::{Digests, PduOutput},
    pdu::{LoginRequest, LoginStage},
};
use target::{Portal, Settings};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use certificates::Authority;
use client::{Client, LOOPBACK, TARGET, memory, server, soon};
use transport::{TlsClient, TlsIdentity, TlsServer};

/// Counts the bytes that are allocated, and their maximum.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let before = IN_USE.fetch_add(layout.size(), Relaxed);
        MOST.fetch_max(before + layout.size(), Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns a login request whose text is `length` bytes long and is to be continued.
fn request(text: impl Into<Bytes>) -> Vec<u8> {
    let request = LoginRequest {
        continues: true,
        current_stage: LoginStage::Operational,
        isid: Isid([0x80, 0, 0, 0, 0, 1]),
        itt: Itt(1),
        cid: Cid(1),
        cmd_sn: Serial(1),
        text: text.into(),
        ..LoginRequest::default()
    };
    let mut output = PduOutput::default();
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

/// Opens [`CONNECTIONS`] connections to `address` and sends the pieces: all connections send a piece before any sends
/// the next one. Returns the maximum number of allocated bytes per connection.
async fn most_held(address: SocketAddr, plain: SocketAddr, pieces: &[&[u8]]) -> usize {
    let before = IN_USE.load(Relaxed);
    MOST.store(before, Relaxed);
    let mut streams = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        streams.push(soon(TcpStream::connect(address)).await.unwrap());
    }
    for piece in pieces {
        for stream in &mut streams {
            // Ignore errors: a connection that the server has closed uses no memory.
            let _ = stream.write_all(piece).await;
        }
        all_was_read(plain).await;
    }
    let most = (MOST.load(Relaxed) - before) / CONNECTIONS;
    for mut stream in streams {
        drop(stream.shutdown().await);
        let mut rest = Vec::new();
        let _ = soon(stream.read_to_end(&mut rest)).await;
    }
    most
}

/// Waits until the server has read everything. The server has one thread, and a login takes several
/// iterations of its loop, each of which serves every socket with data.
async fn all_was_read(address: SocketAddr) {
    for _ in 0..4 {
        Client::log_in(address, 1).await.settle().await;
    }
}

/// Settings whose limits allow all connections of these tests.
fn roomy() -> Settings {
    Settings {
        max_logins: 1000,
        max_logins_per_address: 1000,
        max_connections: 1000,
        ..Settings::default()
    }
}

#[tokio::test]
async fn a_connection_before_its_login_holds_at_most_64_kib() {
    let _alone = ALONE.lock().await;
    let (_server, address) = server(roomy(), memory()).await;
    all_was_read(address).await;
    let idle = most_held(address, address, &[]).await;

    // Send a login request that never becomes complete: the first four bytes one by one, then larger pieces.
    let longest = request(vec![b'x'; 8192]);
    let mut slowly: Vec<&[u8]> = longest[..4].chunks(1).collect();
    slowly.extend(longest[4..8000].chunks(1999));
    let half = most_held(address, address, &slowly).await;

    // Send a text that never ends, in requests of maximum length.
    let mut text = format!("InitiatorName=iqn.2026-11.a:b\0TargetName={TARGET}\0X-text=");
    text.push_str(&"x".repeat(8192 - text.len()));
    let first = request(text);
    let endless =
        most_held(address, address, &[&first, &longest, &longest, &longest, &longest]).await;

    // Send many keys whose answers need much memory.
    let keys: String = (0..700).map(|n| format!("X-{n:03}=1\0")).collect();
    let keys = request(keys);
    let answered = most_held(address, address, &[&keys, &keys, &keys]).await;

    let garbage = most_held(address, address, &[&[0xff; 20_000], b"GET / HTTP/1.1\r\n\r\n"]).await;

    let all = [idle, half, endless, answered, garbage];
    println!(
        "bytes for each connection: idle, half a request, endless text, keys, garbage: {all:?}"
    );
    assert!(all.iter().all(|&bytes| bytes <= 64 << 10), "{all:?}");
    assert!(half >= 8000, "the sent bytes are in memory: {half}");
}

/// Returns the first TLS message of a client.
async fn client_hello(authority: &Authority) -> Vec<u8> {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut far, _) = listener.accept().await.unwrap();
    let tls = TlsClient::new(None, authority.certificate.as_bytes(), None).unwrap();
    let saying = tokio::spawn(async move { tls.connect("127.0.0.1", stream).await.map(drop) });
    let mut hello = vec![0; 5];
    far.read_exact(&mut hello).await.unwrap();
    hello.resize(5 + usize::from(u16::from_be_bytes([hello[3], hello[4]])), 0);
    far.read_exact(&mut hello[5..]).await.unwrap();
    saying.abort();
    hello
}

#[tokio::test]
async fn a_connection_that_has_not_ended_its_handshake_holds_at_most_64_kib() {
    let _alone = ALONE.lock().await;
    let (server, plain) = server(roomy(), memory()).await;
    let ours = Authority::new();
    let issued = ours.issue("127.0.0.1");
    let own =
        TlsIdentity { certificate: issued.certificate.as_bytes(), key: issued.key.as_bytes() };
    let tls = TlsServer::new(own, ours.certificate.as_bytes()).unwrap();
    let portal = Portal { tls: Some(tls), ..LOOPBACK.into() };
    let address = server.open_portal(portal).await.unwrap();
    let hello = client_hello(&ours).await;
    all_was_read(plain).await;
    let idle = most_held(address, plain, &[]).await;
    // The server has answered the ClientHello, and waits for the client's certificate.
    let greeted = most_held(address, plain, &[&hello]).await;
    // Send a TLS ClientHello that never becomes complete, once in several pieces and once in one.
    let mut endless = vec![22, 3, 1, 0x40, 0, 1, 0, 0xfd, 0xe8, 3, 3];
    endless.resize(5 + 0x4000, 0);
    let slowly: Vec<&[u8]> = endless[..16_000].chunks(1999).collect();
    let half = most_held(address, plain, &slowly).await;
    let whole = most_held(address, plain, &[&endless, &endless, &endless]).await;
    let garbage = most_held(address, plain, &[&[0xff; 20_000]]).await;
    let all = [idle, greeted, half, whole, garbage];
    println!("bytes: idle, after the hello, half a hello, too long, garbage: {all:?}");
    assert!(all.iter().all(|&bytes| bytes <= 64 << 10), "{all:?}");
    assert!(half >= 16_000 && greeted > idle, "the sent bytes are in memory: {all:?}");
}

const CONNECTIONS: usize = 500;

/// Makes the tests run one at a time, because all bytes of this process are counted.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
