//! The socket as a congestion control sees it, and the operations that the kernel calls on it.

/// Fields of `struct tcp_sock`, with the kernel's names and units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sock {
    pub snd_cwnd: u32,
    pub snd_cwnd_cnt: u32,
    pub snd_ssthresh: u32,
    pub snd_cwnd_clamp: u32,
    pub prior_cwnd: u32,
    pub prr_out: u32,
    pub packets_out: u32,
    pub sacked_out: u32,
    pub lost_out: u32,
    pub retrans_out: u32,
    pub max_packets_out: u32,
    pub srtt_us: u32,
    pub rttvar_us: u32,
    pub mss_cache: u32,
    pub pacing_rate: u64,
    pub max_pacing_rate: u64,
    pub is_cwnd_limited: bool,
    pub state: u8,
    /// The total number of delivered segments.
    pub delivered: u64,
    /// If not zero, `pacing_rate` limits the rate at which the socket sends.
    pub pacing_status: u32,
    /// True if the socket has data that was never sent (`write_seq` is beyond `snd_nxt`).
    pub has_unsent: bool,
    /// The ensemble to which the process has assigned the socket; `None` without one.
    pub assigned: Option<u32>,
    pub member: Member,
    pub follower: Follower,
}

impl Sock {
    pub fn in_flight(&self) -> u32 {
        (self.packets_out + self.retrans_out).saturating_sub(self.sacked_out + self.lost_out)
    }

    /// Returns true if the window limits the sender, like tcp_is_cwnd_limited().
    pub fn is_limited(&self) -> bool {
        self.is_cwnd_limited
            || (self.snd_cwnd < self.snd_ssthresh && self.snd_cwnd < 2 * self.max_packets_out)
    }
}

/// The private state of the BPF programs in a socket (`icsk_ca_priv`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The number of the ensemble plus one; 0 if the socket belongs to none.
    pub ensemble: u32,
    pub is_cut: u32,
    pub taken: u64,
    pub delivered: u32,
}

/// The private state of the BPF programs in a socket whose ensemble shares a path model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Follower {
    /// The number of the ensemble plus one; 0 if the socket belongs to none.
    pub ensemble: u32,
    /// State of the connection at the last acknowledgment.
    pub state: u32,
    /// The number of the member's segments in flight that the total of the model includes.
    pub in_flight: u32,
    /// 1 if the path model counts this member among those with data to send, otherwise 0.
    pub is_active: u32,
    /// The window that the member gets back after a recovery or PROBE_RTT.
    pub saved: u32,
    pub probes_rtt: u32,
    /// The time at which packet conservation began; zero if packets are not conserved. It ends when a segment is
    /// acknowledged that was sent after this time.
    pub conserves_from: u64,
    /// The newest measured delivery rate of this connection, in segments per microsecond times 2^24.
    pub rate: u64,
}

/// The kernel's `struct rate_sample`, and the other arguments of `cong_control`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    pub acked_sacked: u32,
    pub losses: u32,
    pub prior_in_flight: u32,
    pub ack: u32,
    pub flags: u32,
    pub now_us: u64,
    /// The number of segments that were delivered in `interval_us`. The sample is invalid if the interval is 0.
    pub delivered: u32,
    pub interval_us: u64,
    /// The time of the last delivery before the newest acknowledged segment was sent: the sample's interval begins
    /// then.
    pub prior_us: u64,
    pub rtt_us: Option<u32>,
    /// True if the sample is application-limited.
    pub is_app_limited: bool,
}

pub const DATA_ACKED: u32 = 0x04;
pub const SND_UNA_ADVANCED: u32 = 0x400;

pub const OPEN: u8 = 0;
pub const DISORDER: u8 = 1;
pub const CWR: u8 = 2;
pub const RECOVERY: u8 = 3;
pub const LOSS: u8 = 4;

pub const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;

pub trait Control {
    fn init(&mut self, sock: &mut Sock);
    fn release(&mut self, sock: &mut Sock);
    fn cong_control(&mut self, sock: &mut Sock, sample: &Sample);
    fn ssthresh(&mut self, sock: &mut Sock) -> u32;
    fn undo_cwnd(&mut self, sock: &mut Sock) -> u32;
    fn set_state(&mut self, sock: &mut Sock, state: u8);
}
