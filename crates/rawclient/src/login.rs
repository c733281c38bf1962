//! Login (RFC 7143, 6 and 11.12): sends one request with every key and reads the negotiated values.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_congestion};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Time limit for connecting, and for each read from the socket during the login. All targets are on this machine or
/// behind an emulated link.
const LIMIT: Duration = Duration::from_secs(30);

/// Maximum number of requests in a login; a target that needs more is faulty.
const MAX_REQUESTS: usize = 5;

/// The target and unit that a session logs in to, and the parameters that it proposes.
#[derive(Clone, Debug)]
pub struct ClientLogin {
    pub portal: SocketAddr,
    pub target: String,
    /// LUN of the unit to which the session sends its commands.
    pub lun: u8,
    /// True to ask for CRC32C header and data digests.
    pub digests: bool,
    /// The error recovery level to propose, 0 to 2.
    pub level: u8,
    /// The number of connections to propose (MaxConnections).
    pub connections: u16,
    /// The TCP congestion control of this end, by its name in the kernel. `None` leaves the
    /// default.
    pub congestion: Option<String>,
}

/// Connects to a portal within [`LIMIT`]. Selects the congestion control before connecting. This order matters if the
/// kernel's default is BBR: the kernel paces a connection that began with BBR until its end, even if another congestion
/// control is selected later.
pub fn connect(portal: SocketAddr, congestion: Option<&str>) -> io::Result<TcpStream> {
    let Some(name) = congestion else { return TcpStream::connect_timeout(&portal, LIMIT) };
    let family = if portal.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_tcp_congestion(&socket, name)?;
    set_socket_timeout(&socket, Timeout::Send, Some(LIMIT))?;
    rustix::net::connect(&socket, &portal)?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket.into())
}

/// The parameters on which initiator and target have agreed in the login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// MaxRecvDataSegmentLength of the target: the maximum number of data bytes in a PDU that this client may send.
    pub send_limit: usize,
    /// FirstBurstLength: the most unsolicited data of a write, in bytes.
    pub first_burst: usize,
    /// InitialR2T: if true, no unsolicited Data-Out PDUs are allowed.
    pub initial_r2t: bool,
    /// ImmediateData: true if a command may carry data.
    pub immediate_data: bool,
    /// True if headers have a CRC32C digest.
    pub header_digest: bool,
    /// True if data segments have a CRC32C digest.
    pub data_digest: bool,
}

impl Default for Negotiated {
    /// Returns the values for keys that are not negotiated (RFC 7143, 13).
    fn default() -> Negotiated {
        Negotiated {
            send_limit: 8192,
            first_burst: 65536,
            initial_r2t: true,
            immediate_data: true,
            header_digest: false,
            data_digest: false,
        }
    }
}

/// A connection in full feature phase, with its socket and its sequence numbers.
pub struct LoadClientConnection {
    pub socket: TcpStream,
    pub negotiated: Negotiated,
    /// The command window, which all connections of the session share.
    pub window: Arc<ClientCommandWindow>,
    /// The StatSN that the next response must have.
    pub exp_stat_sn: u32,
    /// The identifier of the session: ISID and TSIH.
    name: ([u8; 6], u16),
    pub cid: u16,
}

/// The command window of a session: the next CmdSN, and MaxCmdSN.
#[derive(Debug)]
pub struct ClientCommandWindow {
    next: AtomicU32,
    most: AtomicU32,
}

impl ClientCommandWindow {
    /// Returns the CmdSN of the next command.
    pub fn next(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// Returns the CmdSN for the next command, and advances the counter.
    pub fn take(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns true if the target accepts no further command at present.
    pub fn is_closed(&self) -> bool {
        (self.most.load(Ordering::Relaxed).wrapping_sub(self.next()) as i32) < 0
    }

    /// Records the MaxCmdSN of a response. Ignores a value that is older than the current one.
    pub fn note(&self, max_cmd_sn: u32) {
        if max_cmd_sn.wrapping_sub(self.most.load(Ordering::Relaxed)) as i32 > 0 {
            self.most.store(max_cmd_sn, Ordering::Relaxed);
        }
    }
}

impl ClientLogin {
    /// Returns the parameters of a session with one connection, without digests and error recovery.
    pub fn new(portal: SocketAddr, target: &str, lun: u8) -> ClientLogin {
        let target = target.to_owned();
        ClientLogin {
            portal,
            target,
            lun,
            digests: false,
            level: 0,
            connections: 1,
            congestion: None,
        }
    }

    /// Connects and logs in with a new session.
    pub fn establish(&self) -> Result<LoadClientConnection> {
        let window = ClientCommandWindow { next: AtomicU32::new(1), most: AtomicU32::new(1) };
        self.connect((new_isid(), 0), 0, Arc::new(window))
    }

    /// Adds a connection to the session whose first connection is `leading`.
    pub fn join(&self, leading: &LoadClientConnection, cid: u16) -> Result<LoadClientConnection> {
        let joined = self.connect(leading.name, cid, leading.window.clone())?;
        // Some values hold for the whole session and are negotiated only on its leading (first) connection. Take these
        // from that connection.
        let leading = &leading.negotiated;
        let negotiated = Negotiated {
            first_burst: leading.first_burst,
            initial_r2t: leading.initial_r2t,
            immediate_data: leading.immediate_data,
            ..joined.negotiated
        };
        Ok(LoadClientConnection { negotiated, ..joined })
    }

    fn connect(
        &self,
        name: ([u8; 6], u16),
        cid: u16,
        window: Arc<ClientCommandWindow>,
    ) -> Result<LoadClientConnection> {
        let socket = connect(self.portal, self.congestion.as_deref())
            .with_context(|| format!("cannot connect to {}", self.portal))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(LIMIT))?;
        let mut established = LoadClientConnection {
            socket,
            negotiated: Negotiated::default(),
            window,
            exp_stat_sn: 0,
            name,
            cid,
        };
        let mut text = self.keys(cid == 0);
        for _ in 0..MAX_REQUESTS {
            established.socket.write_all(&request(&established, &text))?;
            text.clear();
            if established.answer().context("login")? {
                return Ok(established);
            }
        }
        bail!("the login has not ended after {MAX_REQUESTS} requests");
    }

    /// Returns the keys to propose. A connection that joins a session sends only those that are
    /// negotiated for each connection.
    fn keys(&self, is_leading: bool) -> Vec<u8> {
        let digest = if self.digests { "CRC32C" } else { "None" };
        let own = [
            "InitiatorName=iqn.2026-11.forebay:xtask".to_owned(),
            format!("TargetName={}", self.target),
            "SessionType=Normal".to_owned(),
            format!("HeaderDigest={digest}"),
            format!("DataDigest={digest}"),
            "MaxRecvDataSegmentLength=262144".to_owned(),
        ];
        let shared = [
            format!("MaxConnections={}", self.connections),
            "InitialR2T=No".to_owned(),
            "ImmediateData=Yes".to_owned(),
            "MaxBurstLength=1048576".to_owned(),
            "FirstBurstLength=262144".to_owned(),
            "DefaultTime2Wait=2".to_owned(),
            "DefaultTime2Retain=0".to_owned(),
            "MaxOutstandingR2T=1".to_owned(),
            format!("ErrorRecoveryLevel={}", self.level),
        ];
        let shared = is_leading.then_some(shared).into_iter().flatten();
        own.into_iter().chain(shared).flat_map(|key| [key.as_bytes(), b"\0"].concat()).collect()
    }
}

impl LoadClientConnection {
    /// Reads a login response. Returns true if the connection is now in full feature phase.
    fn answer(&mut self) -> Result<bool> {
        let mut bhs = [0; 48];
        self.socket.read_exact(&mut bhs)?;
        ensure!(bhs[0] & 0x3f == 0x23, "answered with operation code {:#04x}", bhs[0] & 0x3f);
        ensure!(bhs[36] == 0, "refused with status {:02x}{:02x}", bhs[36], bhs[37]);
        let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
        let mut data = vec![0; length.next_multiple_of(4)];
        self.socket.read_exact(&mut data)?;
        self.negotiated.take(&data[..length])?;
        self.exp_stat_sn = word(&bhs, 24).wrapping_add(1);
        self.window.note(word(&bhs, 32));
        self.name.1 = u16::from_be_bytes([bhs[14], bhs[15]]);
        Ok(bhs[1] & 0x83 == 0x83)
    }
}

impl Negotiated {
    fn take(&mut self, text: &[u8]) -> Result<()> {
        for pair in text.split(|byte| *byte == 0).filter(|pair| !pair.is_empty()) {
            let pair = std::str::from_utf8(pair)?;
            let (key, value) = pair.split_once('=').with_context(|| format!("key '{pair}'"))?;
            match key {
                "MaxRecvDataSegmentLength" => self.send_limit = value.parse()?,
                "FirstBurstLength" => self.first_burst = value.parse()?,
                "InitialR2T" => self.initial_r2t = value == "Yes",
                "ImmediateData" => self.immediate_data = value == "Yes",
                "HeaderDigest" => self.header_digest = value == "CRC32C",
                "DataDigest" => self.data_digest = value == "CRC32C",
                _ => {}
            }
        }
        Ok(())
    }
}

/// Builds a login request in the operational stage that asks for the full feature phase.
fn request(connection: &LoadClientConnection, text: &[u8]) -> Vec<u8> {
    let (isid, tsih) = connection.name;
    let mut pdu = vec![0; 48];
    pdu[0] = 0x40 | 0x03;
    pdu[1] = 0x80 | (1 << 2) | 3;
    pdu[5..8].copy_from_slice(&(text.len() as u32).to_be_bytes()[1..]);
    pdu[8..14].copy_from_slice(&isid);
    pdu[14..16].copy_from_slice(&tsih.to_be_bytes());
    pdu[20..22].copy_from_slice(&connection.cid.to_be_bytes());
    pdu[24..28].copy_from_slice(&connection.window.next().to_be_bytes());
    pdu[28..32].copy_from_slice(&connection.exp_stat_sn.to_be_bytes());
    pdu.extend_from_slice(text);
    pdu.resize(pdu.len().next_multiple_of(4), 0);
    pdu
}

/// Returns an ISID that no other session of any process has (type "random", RFC 7143, 11.12.5).
fn new_isid() -> [u8; 6] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let process = std::process::id().to_be_bytes();
    let next = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    [0x80, process[1], process[2], process[3], next[2], next[3]]
}

/// Returns the big-endian number in the four bytes of a header from offset `at` on.
pub fn word(bhs: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bhs[at..at + 4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_begins_with_the_congestion_control_that_was_asked_for() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let portal = listener.local_addr().unwrap();
        // Reno is in every kernel and allowed for all users.
        let socket = connect(portal, Some("reno")).unwrap();
        assert_eq!(rustix::net::sockopt::tcp_congestion(&socket).unwrap(), "reno");
        assert_eq!(socket.write_timeout().unwrap(), None);
    }

    #[test]
    fn answers_change_the_negotiated_values() {
        let mut negotiated = Negotiated::default();
        negotiated
            .take(b"InitialR2T=No\0HeaderDigest=CRC32C\0FirstBurstLength=512\0X=y\0")
            .unwrap();
        let expected = Negotiated {
            initial_r2t: false,
            header_digest: true,
            first_burst: 512,
            ..Negotiated::default()
        };
        assert_eq!(negotiated, expected);
        assert!(negotiated.take(b"no equals sign\0").is_err());
    }

    #[test]
    fn sessions_do_not_share_their_identifier() {
        assert_ne!(new_isid(), new_isid());
    }
}
