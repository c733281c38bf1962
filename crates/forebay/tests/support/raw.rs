//! Connections that send hand-made iSCSI PDUs, for strangers and initiators that misbehave.

use std::{
    io::{ErrorKind, PipeReader, PipeWriter, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use socket2::{Domain, Socket, Type};

/// Maximum time that a response may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a pipe whose buffer is full, so that writes to it block or fail.
pub fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let flags = fcntl_getfl(writer.as_fd()).expect("flags");
    fcntl_setfl(writer.as_fd(), flags | OFlags::NONBLOCK).expect("set");
    for piece in [4096, 1] {
        while writer.write(&vec![b'\n'; piece]).is_ok() {}
    }
    fcntl_setfl(writer.as_fd(), flags).expect("set");
    (reader, writer)
}

pub fn connect_from(from: IpAddr, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::new(from, 0).into()).expect("bound");
    socket.connect_timeout(&to.into(), PATIENCE).expect("connected");
    let stream: TcpStream = socket.into();
    stream.set_nodelay(true).expect("set");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream.set_write_timeout(Some(PATIENCE)).expect("set");
    stream
}

/// Returns a login request of stage `current` with these keys, which requests stage `next` if there is one. `isid`
/// distinguishes the sessions of one initiator.
pub fn login_request(current: u8, next: Option<u8>, isid: u16, keys: &[(&str, &str)]) -> Vec<u8> {
    let text: String = keys.iter().map(|(key, value)| format!("{key}={value}\0")).collect();
    let mut pdu = vec![0; 48];
    pdu[0] = 0x43;
    pdu[1] = current << 2 | next.map_or(0, |next| 0x80 | next);
    pdu[4..8].copy_from_slice(&(text.len() as u32).to_be_bytes());
    pdu[8] = 0x80;
    pdu[12..14].copy_from_slice(&isid.to_be_bytes());
    pdu[19] = 1; // ITT
    pdu[21] = 1; // CID
    pdu[27] = 1; // CmdSN
    pdu.extend_from_slice(text.as_bytes());
    pdu.resize(pdu.len().next_multiple_of(4), 0);
    pdu
}

/// Reads one PDU and returns its header and its data segment. Returns `None` if the peer has closed the connection, or
/// sends nothing within the stream's timeout.
pub fn read_pdu(stream: &mut TcpStream) -> Option<([u8; 48], Vec<u8>)> {
    use ErrorKind::{ConnectionReset, TimedOut, UnexpectedEof, WouldBlock};
    let mut header = [0; 48];
    match stream.read_exact(&mut header).map_err(|error| error.kind()) {
        Ok(()) => {}
        Err(UnexpectedEof | ConnectionReset | WouldBlock | TimedOut) => return None,
        Err(error) => panic!("no PDU: {error}"),
    }
    let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
    let mut data = vec![0; length.next_multiple_of(4)];
    stream.read_exact(&mut data).expect("the data segment");
    data.truncate(length);
    Some((header, data))
}

/// Returns status class and detail of a login response (RFC 7143, 11.13.5).
pub fn login_status(header: &[u8; 48]) -> u16 {
    assert_eq!(header[0], 0x23, "a login response");
    u16::from_be_bytes([header[36], header[37]])
}

/// Logs in without authentication, directly to the full feature phase. Returns the status of the response, or `None` if
/// the connection was closed without one.
pub fn log_in(stream: &mut TcpStream, isid: u16, keys: &[(&str, &str)]) -> Option<u16> {
    stream.write_all(&login_request(1, Some(3), isid, keys)).ok()?;
    read_pdu(stream).map(|(header, _)| login_status(&header))
}

/// Logs in to `target` as `user` with a wrong secret. Returns the status of the response, or `None` if the connection
/// was closed without one.
pub fn guess(stream: &mut TcpStream, target: &str, user: &str) -> Option<u16> {
    let names = [
        ("InitiatorName", "iqn.2026-11.test:guesser"),
        ("TargetName", target),
        ("AuthMethod", "CHAP"),
    ];
    let proof = [("CHAP_N", user), ("CHAP_R", "0x000102030405060708090a0b0c0d0e0f")];
    for (next, keys) in [(None, &names[..]), (None, &[("CHAP_A", "5")]), (Some(1), &proof)] {
        stream.write_all(&login_request(0, next, 1, keys)).ok()?;
        let (header, _) = read_pdu(stream)?;
        if login_status(&header) != 0 {
            return Some(login_status(&header));
        }
    }
    panic!("a wrong proof was accepted");
}

/// Maximum length of a write whose data is sent with the command.
pub const FIRST_BURST: usize = 256 << 10;

/// Login keys that permit a first burst of [`FIRST_BURST`] bytes.
pub const FIRST_BURST_KEYS: [(&str, &str); 3] =
    [("InitialR2T", "No"), ("ImmediateData", "Yes"), ("FirstBurstLength", "262144")];

/// Returns a WRITE(10) of 256 KiB of zeros at block 0, with all data immediate.
pub fn write_command(cmd_sn: u32) -> Vec<u8> {
    let mut pdu = vec![0; 48 + FIRST_BURST];
    pdu[0] = 0x01;
    pdu[1] = 0x80 | 0x20 | 1;
    pdu[5..8].copy_from_slice(&(FIRST_BURST as u32).to_be_bytes()[1..]);
    pdu[16..20].copy_from_slice(&cmd_sn.to_be_bytes()); // ITT
    pdu[20..24].copy_from_slice(&(FIRST_BURST as u32).to_be_bytes());
    pdu[24..28].copy_from_slice(&cmd_sn.to_be_bytes());
    pdu[28..32].copy_from_slice(&1_u32.to_be_bytes()); // ExpStatSN
    pdu[32] = 0x2a;
    pdu[39..41].copy_from_slice(&((FIRST_BURST >> 9) as u16).to_be_bytes());
    pdu
}

/// Raises the limit of open files of this process to this number of sockets plus its other files, if permitted
/// (setrlimit(2)).
pub fn allow_open_files(sockets: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = sockets as u64 + 1024;
    if limit.current.is_some_and(|current| current < wanted) {
        let current = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        let raised = Rlimit { current: Some(current), maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).expect("below the hard limit");
    }
}

/// Returns true if the peer has neither closed the connection nor sent anything. The stream must be non-blocking.
pub fn is_idle(stream: &TcpStream) -> bool {
    matches!(stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

pub fn local(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

/// 300 silent connections from three addresses. A connection that the program closes is opened again at once, so that
/// strangers always use as many connections as the program permits. Dropping this ends the connections.
pub struct Silent {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Silent {
    /// Opens connections until there are 300 of them.
    pub fn at(to: SocketAddr) -> Self {
        let connect = move |number: usize| {
            let stream = connect_from(local(8 + (number % 3) as u8), to);
            stream.set_nonblocking(true).expect("set");
            stream
        };
        let mut open: Vec<_> = (0..300).map(connect).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Relaxed) {
                let mut closed = 0;
                for (number, stream) in open.iter_mut().enumerate() {
                    if !is_idle(stream) {
                        *stream = connect(number);
                        closed += 1;
                    }
                    // Limit the rate, so that the reconnects do not use the whole CPU.
                    if closed == MOST_AGAIN {
                        break;
                    }
                }
                open.rotate_left(MOST_AGAIN);
                thread::sleep(Duration::from_millis(4));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

/// Maximum number of reconnects per turn.
const MOST_AGAIN: usize = 8;

impl Drop for Silent {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
