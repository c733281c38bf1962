//! A tunnel: a volume over TLS, strangers that are refused at either end, and connections that are closed in one
//! direction.

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    time::Duration,
};

use support::{
    Place, Running, content,
    raw::{Silent, full_pipe},
    read, write,
};
use volume::Volume;

use crate::support;

/// Creates two authorities, `ours` and `theirs`. The first issues `node` and `host`, the second `stranger`.
fn certificates() -> Place {
    let place = Place::new();
    let ours = place.authority("ours");
    place.certificate(&ours, "node", "localhost");
    place.certificate(&ours, "host", "localhost");
    place.certificate(&place.authority("theirs"), "stranger", "localhost");
    place
}

fn command(folder: &Path, kind: &str, to: SocketAddr, who: &str, authority: &str) -> Command {
    let option = if kind == "accept" { "--client-ca" } else { "--ca" };
    let mut command = support::forebay();
    command
        .args(["tunnel", kind, "--listen", "127.0.0.1:0"])
        .args(["--to", &format!("localhost:{}", to.port())])
        .args(["--certificate", &format!("{who}.pem"), "--key", &format!("{who}.key")])
        .args([option, &format!("{authority}.pem")])
        .current_dir(folder);
    command
}

/// Starts one end of a tunnel. Returns it with its address, or the reason why it does not start.
fn try_end(
    folder: &Path,
    kind: &str,
    to: SocketAddr,
    who: &str,
    authority: &str,
) -> Result<(Running, SocketAddr), String> {
    let mut command = command(folder, kind, to, who, authority);
    let running = support::start(command.args(["--log-level", "off"]))?;
    let address = running.ready.parse().expect("an address");
    Ok((running, address))
}

fn end(
    folder: &Path,
    kind: &str,
    to: SocketAddr,
    who: &str,
    authority: &str,
) -> (Running, SocketAddr) {
    try_end(folder, kind, to, who, authority).expect("it starts")
}

#[tokio::test]
async fn a_volume_is_reached_through_tls() {
    let place = certificates();
    let node = place.serve("storage", &support::node(place.folder.path(), 0));
    let far = end(place.folder.path(), "accept", node.address, "node", "ours");
    let near = end(place.folder.path(), "connect", far.1, "host", "ours");
    let volume = support::connect(near.1, "iqn.2026-11.test:node").await;
    for block in 0..64 {
        write(&*volume, block, 1).await.expect("written");
    }
    volume.flush().await.expect("flushed");
    for block in 0..64 {
        assert_eq!(read(&*volume, block).await.expect("read"), content(block, 1));
    }
}

/// Sends `said` through the tunnel and closes this direction. The server then sends all of it back in reverse order.
/// Returns the answer of the server.
fn exchange(near: SocketAddr, said: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(near)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(said)?;
    stream.shutdown(Shutdown::Write)?;
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard)?;
    Ok(heard)
}

fn reversing() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut heard = Vec::new();
            if stream.read_to_end(&mut heard).is_ok() {
                heard.reverse();
                let _ = stream.write_all(&heard);
            }
        }
    });
    address
}

#[test]
fn an_end_that_has_closed_its_sending_direction_still_receives() {
    let place = certificates();
    let folder = place.folder.path();
    let far = end(folder, "accept", reversing(), "node", "ours");
    let near = end(folder, "connect", far.1, "host", "ours");
    // Send more than the buffers in between can hold.
    let said: Vec<u8> = (0..8_000_000u32).map(|n| (n % 251) as u8).collect();
    let mut heard = exchange(near.1, &said).expect("heard");
    heard.reverse();
    assert!(heard == said, "{} of {} bytes", heard.len(), said.len());
}

#[test]
fn strangers_are_refused_at_either_end() {
    let place = certificates();
    let folder = place.folder.path();
    let echo = reversing();
    let far = end(folder, "accept", echo, "node", "ours");
    let is_refused = |near: SocketAddr| exchange(near, b"hello").unwrap_or_default().is_empty();
    // Try a client of another authority, a server of another authority, and a client without TLS.
    assert!(is_refused(end(folder, "connect", far.1, "stranger", "ours").1));
    assert!(is_refused(end(folder, "connect", far.1, "host", "theirs").1));
    assert!(exchange(far.1, b"GET / HTTP/1.1\r\n\r\n").unwrap_or_default().len() < 64);
    let near = end(folder, "connect", far.1, "host", "ours");
    assert_eq!(exchange(near.1, b"hello").expect("heard"), b"olleh", "others are unharmed");
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let place = certificates();
    fs::set_permissions(place.path("host.key"), fs::Permissions::from_mode(0o644)).expect("chmod");
    let far = SocketAddr::from(([127, 0, 0, 1], 1));
    let error =
        try_end(place.folder.path(), "connect", far, "host", "ours").err().expect("refused");
    assert!(error.contains("exit status: 2"), "{error}");
    assert!(error.contains("remedy: chmod 600 host.key"), "{error}");
}

/// Regression: half-open handshakes made further connections impossible.
#[test]
fn half_open_handshakes_do_not_block_a_tunnel() {
    let place = certificates();
    let folder = place.folder.path();
    let far = end(folder, "accept", reversing(), "node", "ours");
    let near = end(folder, "connect", far.1, "host", "ours");
    let _silent = Silent::at(far.1);
    for _ in 0..4 {
        assert_eq!(exchange(near.1, b"hello").expect("heard"), b"olleh");
    }
}

/// Regression: each lost connection blocked a relay thread on stderr.
#[test]
fn a_full_stderr_pipe_does_not_block_a_tunnel() {
    let place = certificates();
    let folder = place.folder.path();
    let (_reader, writer) = full_pipe();
    let mut accept = command(folder, "accept", reversing(), "node", "ours");
    let far = support::start_with(&mut accept, writer.into()).expect("it starts");
    let address: SocketAddr = far.ready.parse().expect("an address");
    for _ in 0..20 {
        assert!(exchange(address, b"GET / HTTP/1.1\r\n\r\n").unwrap_or_default().len() < 64);
    }
    let near = end(folder, "connect", address, "host", "ours");
    assert_eq!(exchange(near.1, b"hello").expect("heard"), b"olleh");
    far.signal(rustix::process::Signal::TERM);
    let mut far = far;
    assert!(far.wait().success());
}
