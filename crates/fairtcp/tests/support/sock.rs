//! What a congestion control sees of a socket, and what the kernel asks of it.

use fairtcp::BLOCK_BYTES;

/// Fields of `struct tcp_sock`, with the kernel's names and units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sock {
    pub snd_cwnd: u32,
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
    /// Which ensemble the process has written down for it.
    pub assigned: Option<u32>,
    pub member: Member,
}

impl Sock {
    pub fn in_flight(&self) -> u32 {
        (self.packets_out + self.retrans_out).saturating_sub(self.sacked_out + self.lost_out)
    }
}

/// What the programs keep in `icsk_ca_priv`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The number of the ensemble and one.
    pub ensemble: u32,
    pub is_cut: u32,
    pub taken: u64,
    pub delivered: u32,
}

/// `struct rate_sample`, and the other arguments of `cong_control`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    pub acked_sacked: u32,
    pub losses: u32,
    pub prior_in_flight: u32,
    pub ack: u32,
    pub flags: u32,
}

pub const DATA_ACKED: u32 = 0x04;
pub const SND_UNA_ADVANCED: u32 = 0x400;

pub const OPEN: u8 = 0;
pub const DISORDER: u8 = 1;
pub const CWR: u8 = 2;
pub const RECOVERY: u8 = 3;
pub const LOSS: u8 = 4;

pub const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;

/// A congestion control with the blocks of its ensembles.
pub trait Control {
    fn init(&mut self, sock: &mut Sock);
    fn release(&mut self, sock: &mut Sock);
    fn cong_control(&mut self, sock: &mut Sock, sample: &Sample);
    fn ssthresh(&mut self, sock: &mut Sock) -> u32;
    fn undo_cwnd(&mut self, sock: &mut Sock) -> u32;
    fn set_state(&mut self, sock: &mut Sock, state: u8);
    /// The bytes of a block as they are in the map.
    fn block(&self, number: u32) -> [u8; BLOCK_BYTES];
}
