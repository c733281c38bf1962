//! TCP sockets as reported by NETLINK_SOCK_DIAG (linux/inet_diag.h): encodes requests and decodes answers.

/// Identifies a socket in a request: addresses, ports and the kernel's cookie, encoded as the kernel encodes them in an
/// answer.
pub type SocketId = [u8; 48];

/// The part of the kernel's TCP_INFO of a socket (linux/tcp.h) that is sampled. Windows are in
/// segments.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TcpInfo {
    /// Congestion window of the connection, in segments.
    pub cwnd: u32,
    /// Slow start threshold in segments; 2^31 - 1 means that it is not set yet.
    pub ssthresh: u32,
    /// The smoothed round trip time, in microseconds.
    pub srtt_us: u32,
    /// Number of segments that were sent and are not acknowledged yet.
    pub unacked: u32,
    /// Retransmitted segments since the socket was opened.
    pub retransmits: u32,
    /// Number of data segments sent, including retransmissions.
    pub segments: u32,
    /// Segments that the peer reported as received twice: the number of unnecessary retransmissions.
    pub duplicates: u32,
    /// The last measured delivery rate, in bytes per second.
    pub delivery_rate: u64,
    /// Retransmission timeouts; `None` before Linux 6.7.
    pub timeouts: Option<u16>,
}

/// A message of the kernel in answer to a request for the states of sockets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SockDiagMessage {
    /// An established connection, with the counters of its TCP state.
    Socket(SocketId, TcpInfo),
    /// A socket that is being closed, without the TCP state.
    Other,
    /// The last message of the kernel's answer.
    Done,
    /// An error number; ENOENT: the socket does not exist.
    Failed(i32),
}

/// Returns a request for all established sockets of an address family with this remote port and
/// this local port; `None` matches any port.
#[must_use]
pub fn list(family: u8, remote: Option<u16>, local: Option<u16>) -> Vec<u8> {
    let mut id = [0; 48];
    id[..2].copy_from_slice(&local.unwrap_or(0).to_be_bytes());
    id[2..4].copy_from_slice(&remote.unwrap_or(0).to_be_bytes());
    request(NLM_F_REQUEST | NLM_F_DUMP, family, 1 << TCP_ESTABLISHED, &id)
}

/// Encodes a request to the kernel for the state of one socket.
#[must_use]
pub fn one(family: u8, id: &SocketId) -> Vec<u8> {
    request(NLM_F_REQUEST, family, u32::MAX, id)
}

/// Sets the sequence number of a request, which the kernel repeats in its answer.
pub fn number(request: &mut [u8], number: u32) {
    request[8..12].copy_from_slice(&number.to_ne_bytes());
}

fn request(flags: u16, family: u8, states: u32, id: &SocketId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(REQUEST_BYTES);
    bytes.extend((REQUEST_BYTES as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // Two fields of zeros: the sequence number, which [`number`] sets later, and our port number,
    // which the kernel fills in.
    bytes.extend([0; 8]);
    bytes.extend([family, IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0]);
    bytes.extend(states.to_ne_bytes());
    bytes.extend(id);
    bytes
}

/// Decodes the messages in a received buffer. Returns each message with the sequence number of the request that it
/// answers. Decoding stops at a message that is shorter than its length field says.
pub fn read(bytes: &[u8]) -> impl Iterator<Item = (u32, SockDiagMessage)> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = word(rest, 0)? as usize;
        let message = rest.get(..length).filter(|it| it.len() >= HEADER_BYTES)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        let kind = u16::from_ne_bytes(*message.get(4..)?.first_chunk()?);
        let number = word(message, 8)?;
        let body = &message[HEADER_BYTES..];
        let answer = match kind {
            NLMSG_DONE => SockDiagMessage::Done,
            NLMSG_ERROR => SockDiagMessage::Failed(word(body, 0).map_or(0, |it| -(it as i32))),
            SOCK_DIAG_BY_FAMILY => socket(body).unwrap_or(SockDiagMessage::Other),
            _ => SockDiagMessage::Other,
        };
        Some((number, answer))
    })
}

/// Decodes the kernel's structure `inet_diag_msg` and its attributes.
fn socket(body: &[u8]) -> Option<SockDiagMessage> {
    let id = *body.get(4..)?.first_chunk()?;
    if body.get(1) != Some(&TCP_ESTABLISHED) {
        return None;
    }
    let mut rest = body.get(MESSAGE_BYTES..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(4..length)?;
        if kind == u16::from(INET_DIAG_INFO) {
            return tcp_info(value).map(|info| SockDiagMessage::Socket(id, info));
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

/// Decodes the kernel's structure `tcp_info`. Newer kernels append fields, which are ignored.
fn tcp_info(bytes: &[u8]) -> Option<TcpInfo> {
    Some(TcpInfo {
        cwnd: word(bytes, 80)?,
        ssthresh: word(bytes, 76)?,
        srtt_us: word(bytes, 68)?,
        unacked: word(bytes, 24)?,
        retransmits: word(bytes, 100)?,
        segments: word(bytes, 156)?,
        duplicates: word(bytes, 216)?,
        delivery_rate: u64::from_ne_bytes(*bytes.get(160..)?.first_chunk()?),
        timeouts: bytes
            .get(240..)
            .and_then(|it| it.first_chunk())
            .map(|it| u16::from_ne_bytes(*it)),
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

// Numbers from linux/netlink.h.
const HEADER_BYTES: usize = 16;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
// Numbers from linux/sock_diag.h and linux/inet_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_INFO: u8 = 2;
const MESSAGE_BYTES: usize = 72;
/// Size of a request: the netlink header and `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
const IPPROTO_TCP: u8 = 6;
const TCP_ESTABLISHED: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    fn established(info_bytes: usize) -> Vec<u8> {
        let mut info = vec![0u8; info_bytes];
        for (at, value) in [(80, 7u32), (76, 5), (68, 4100), (24, 6), (100, 3), (156, 90)] {
            info[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        if info_bytes > 242 {
            info[240..242].copy_from_slice(&2u16.to_ne_bytes());
        }
        let mut body = vec![2, TCP_ESTABLISHED, 0, 0];
        body.extend([9; 48]);
        body.extend([0; 20]);
        // Put an attribute whose length is not a multiple of four before INET_DIAG_INFO: decoding
        // must skip its padding.
        body.extend([7, 0, 8, 0, 1, 2, 3, 0]);
        body.extend(((4 + info_bytes) as u16).to_ne_bytes());
        body.extend([INET_DIAG_INFO, 0]);
        body.extend(info);
        message(SOCK_DIAG_BY_FAMILY, &body)
    }

    #[test]
    fn an_answer_is_read() {
        let mut bytes = established(248);
        bytes.extend(established(232));
        bytes.extend(message(NLMSG_ERROR, &(-2i32).to_ne_bytes()));
        bytes.extend(message(NLMSG_DONE, &[0; 4]));
        let info = TcpInfo {
            cwnd: 7,
            ssthresh: 5,
            srtt_us: 4100,
            unacked: 6,
            retransmits: 3,
            segments: 90,
            timeouts: Some(2),
            ..TcpInfo::default()
        };
        let older = TcpInfo { timeouts: None, ..info };
        let expected = [
            SockDiagMessage::Socket([9; 48], info),
            SockDiagMessage::Socket([9; 48], older),
            SockDiagMessage::Failed(2),
            SockDiagMessage::Done,
        ];
        assert_eq!(read(&bytes).map(|(_, answer)| answer).collect::<Vec<_>>(), expected);
        number(&mut bytes, 77);
        assert_eq!(read(&bytes).map(|(number, _)| number).collect::<Vec<_>>(), [77, 0, 0, 0]);
    }

    #[test]
    fn no_bytes_can_harm() {
        let whole = established(248);
        for end in 0..whole.len() {
            let _ = read(&whole[..end]).count();
        }
        for at in 0..whole.len() {
            for value in [0, 1, 3, 4, 0x7f, 0xff] {
                let mut wrong = whole.clone();
                wrong[at] = value;
                assert!(read(&wrong).count() <= whole.len() / HEADER_BYTES);
            }
        }
        // Regression: a message that is shorter than its own header was decoded in an endless loop.
        assert_eq!(read(&[0; 64]).count(), 0);
    }

    #[test]
    fn a_request_is_as_long_as_the_kernels() {
        let bytes = list(2, Some(3260), None);
        assert_eq!((bytes.len(), word(&bytes, 0)), (72, Some(72)));
        assert_eq!(bytes[26..28], 3260u16.to_be_bytes());
        assert_eq!(one(2, &[1; 48])[24..], [1; 48]);
    }
}
