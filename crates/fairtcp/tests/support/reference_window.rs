//! Fair-TCP as a state machine in Rust. It computes the same numbers as the programs of `src/program`, in a form that
//! is easier to read.

use fairtcp::BLOCK_BYTES;

use super::sock::{
    CWR, Control, DATA_ACKED, INFINITE_SSTHRESH, LOSS, Member, RECOVERY, SND_UNA_ADVANCED, Sample,
    Sock,
};

/// One segment, in the unit of windows with 16 fractional bits.
const SEGMENT: i64 = 1 << 16;

/// The control block of an ensemble whose members share a congestion window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    pub window: i64,
    pub threshold: i64,
    pub members: u32,
    pub per_ack: bool,
    pub srtt: u32,
    pub rttvar: u32,
    pub grown: u64,
    pub cuts: u64,
    pub floored: u64,
    pub late_cuts: u64,
    pub undone: u64,
    pub timeouts: u64,
}

impl Block {
    fn count(&self) -> i64 {
        i64::from(self.members.max(1))
    }

    fn floor(&self) -> i64 {
        2 * SEGMENT * self.count()
    }

    fn window(&self) -> i64 {
        self.window.max(self.floor())
    }

    /// Returns the share of a member (paper, Table 1).
    fn share(&self) -> i64 {
        self.window() / self.count()
    }

    fn to_bytes(self) -> [u8; BLOCK_BYTES] {
        let mut bytes = vec![];
        bytes.extend(self.window.to_le_bytes());
        bytes.extend(self.threshold.to_le_bytes());
        for word in [self.members, self.per_ack.into(), self.srtt, self.rttvar] {
            bytes.extend(word.to_le_bytes());
        }
        let counters =
            [self.grown, self.cuts, self.floored, self.late_cuts, self.undone, self.timeouts];
        counters.iter().for_each(|counter| bytes.extend(counter.to_le_bytes()));
        bytes.try_into().expect("as long as a block")
    }
}

pub struct Twin {
    pub blocks: Vec<Block>,
}

impl Twin {
    pub fn new(blocks: usize, per_ack: bool) -> Self {
        Self { blocks: vec![Block { per_ack, ..Block::default() }; blocks] }
    }

    /// Returns the bytes of control block `number`, as the BPF map would hold them.
    pub fn block(&self, number: u32) -> [u8; BLOCK_BYTES] {
        self.blocks[number as usize].to_bytes()
    }

    fn of(&mut self, sock: &Sock) -> Option<&mut Block> {
        self.blocks.get_mut(sock.member.ensemble.checked_sub(1)? as usize)
    }
}

impl Control for Twin {
    fn init(&mut self, sock: &mut Sock) {
        sock.member = Member { is_cut: 2, ..Member::default() };
        let Some(number) = sock.assigned else { return };
        let Some(block) = self.blocks.get_mut(number as usize) else { return };
        sock.member.ensemble = number + 1;
        block.members += 1;
        if block.members == 1 {
            block.window = i64::from(sock.snd_cwnd) * SEGMENT;
            block.threshold = i64::from(sock.snd_ssthresh) * SEGMENT;
        }
    }

    fn release(&mut self, sock: &mut Sock) {
        let Some(block) = self.of(sock) else { return };
        if block.count() > 1 {
            block.window -= block.share();
        }
        block.members = block.members.wrapping_sub(1);
        sock.member.ensemble = 0;
    }

    fn cong_control(&mut self, sock: &mut Sock, sample: &Sample) {
        let Some(block) = self.of(sock) else { return control_plain(sock, sample) };
        (block.srtt, block.rttvar) = (sock.srtt_us, sock.rttvar_us);
        let mut has_recovered = false;
        if sock.state < CWR {
            has_recovered = std::mem::take(&mut sock.member.is_cut) == 1;
        } else if sock.member.is_cut == 0 {
            block.late_cuts += 1;
            cut(block, &mut sock.member, sock.packets_out);
        }
        grow(block, sock, sample);
        if matches!(sock.state, CWR | RECOVERY) {
            let share = (block.share() / SEGMENT) as u32;
            reduce(sock, sample, share);
        } else {
            settle(block, sock, sample.acked_sacked, has_recovered);
        }
        pace(sock);
    }

    fn ssthresh(&mut self, sock: &mut Sock) -> u32 {
        let (mut member, packets_out) = (sock.member, sock.packets_out);
        let Some(block) = self.of(sock) else {
            sock.member.delivered = 0;
            return reno_ssthresh(sock);
        };
        let after = cut(block, &mut member, packets_out);
        let share = after / block.count() / SEGMENT;
        sock.member = member;
        share.max(2) as u32
    }

    fn undo_cwnd(&mut self, sock: &mut Sock) -> u32 {
        let taken = sock.member.taken as i64;
        if let Some(block) = self.of(sock) {
            if taken > 0 {
                block.window += taken;
                block.threshold = block.threshold.max(block.window);
            }
            block.undone += 1;
            sock.member.taken = 0;
        }
        sock.snd_cwnd.max(sock.prior_cwnd)
    }

    fn set_state(&mut self, sock: &mut Sock, state: u8) {
        if let Some(block) = self.of(sock) {
            block.timeouts += u64::from(state == LOSS);
            if state == LOSS && sock.member.is_cut != 0 {
                sock.member.is_cut = 2;
            }
        }
    }
}

/// Handles an acknowledgment for a socket that belongs to no ensemble and uses Reno.
pub fn control_plain(sock: &mut Sock, sample: &Sample) {
    if matches!(sock.state, CWR | RECOVERY) {
        reduce(sock, sample, sock.snd_ssthresh.min(sock.prior_cwnd));
    } else if sample.flags & DATA_ACKED != 0 {
        reno_cong_avoid(sock, sample.acked_sacked);
    }
    pace(sock);
}

/// Reduces the window of the ensemble by half of what the member has in flight (RFC 5681, (4): FlightSize), but at most
/// by half a share. Returns the reduced window.
fn cut(block: &mut Block, member: &mut Member, packets_out: u32) -> i64 {
    let window = block.window();
    let flight = i64::from(packets_out) * SEGMENT;
    let (half, room) = (block.share().min(flight) / 2, window - block.floor());
    block.floored += u64::from(half > room);
    let taken = half.min(room);
    *member = Member { is_cut: 1, taken: taken as u64, delivered: 0, ..*member };
    block.window -= taken;
    block.threshold = window - taken;
    block.cuts += 1;
    window - taken
}

/// Reduces the window towards the share (RFC 6937, 3.1).
pub fn reduce(sock: &mut Sock, sample: &Sample, share: u32) {
    if sample.acked_sacked == 0 {
        return;
    }
    let target = i64::from(share.max(2));
    sock.member.delivered += sample.acked_sacked;
    let delivered = i64::from(sock.member.delivered);
    let (sent, in_flight) = (i64::from(sock.prr_out), i64::from(sock.in_flight()));
    let mut send = if target < in_flight {
        let prior = i64::from(sock.prior_cwnd);
        let due = if prior == 0 { 0 } else { (target * delivered + prior - 1) / prior };
        due - sent
    } else {
        let is_progress = sample.flags & SND_UNA_ADVANCED != 0 && sample.losses == 0;
        let bound = (delivered - sent).max(i64::from(sample.acked_sacked));
        (bound + i64::from(is_progress)).min(target - in_flight)
    };
    send = send.max(i64::from(sent == 0));
    sock.snd_cwnd = (in_flight + send).max(1) as u32;
    if sock.member.ensemble != 0 {
        sock.snd_ssthresh = target as u32;
    }
}

/// Lets the window grow (RFC 5681, 3.1). If it grows by the number of acknowledged segments, it also grows while the
/// member recovers from a loss. If it grows by the number of acknowledgments, as in Linux 2.4, it does not grow during
/// a recovery.
fn grow(block: &mut Block, sock: &Sock, sample: &Sample) {
    let share = block.share();
    let is_reduced = matches!(sock.state, CWR | RECOVERY);
    let counts = !block.per_ack || (sample.flags & DATA_ACKED != 0 && !is_reduced);
    if sample.acked_sacked == 0
        || !counts
        || !sock.is_limited()
        || share >= i64::from(sock.snd_cwnd_clamp) * SEGMENT
    {
        return;
    }
    let acked = SEGMENT * if block.per_ack { 1 } else { i64::from(sample.acked_sacked) };
    let window = block.window();
    block.window += if window < block.threshold {
        acked.min(block.threshold - window)
    } else {
        // Divide by the segments in flight if they are more than the share: right after a reduction, acknowledgments
        // still arrive at the rate of the previous window.
        acked * SEGMENT / share.max(i64::from(sample.prior_in_flight) * SEGMENT)
    };
    block.grown += 1;
}

/// Sets the member's window to its share (paper, Table 1). If the share is larger than the window, the window grows
/// towards the share by the number of acknowledged segments.
fn settle(block: &mut Block, sock: &mut Sock, acked: u32, has_recovered: bool) {
    block.window = block.window();
    let share = (block.share() / SEGMENT) as u32;
    let most = if has_recovered { u32::MAX } else { sock.snd_cwnd + acked };
    sock.snd_cwnd = share.min(most).min(sock.snd_cwnd_clamp).max(1);
    sock.snd_ssthresh = if block.threshold / SEGMENT >= i64::from(INFINITE_SSTHRESH) {
        INFINITE_SSTHRESH
    } else {
        (block.threshold / block.count() / SEGMENT).max(2) as u32
    };
}

/// Sets the pacing rate like the kernel's tcp_update_pacing_rate().
fn pace(sock: &mut Sock) {
    let percent = if sock.snd_cwnd < sock.snd_ssthresh / 2 { 200 } else { 120 };
    let segments = u64::from(sock.snd_cwnd.max(sock.packets_out));
    let rate = u64::from(sock.mss_cache) * 80_000 * percent * segments;
    let rate = if sock.srtt_us == 0 { rate } else { rate / u64::from(sock.srtt_us) };
    sock.pacing_rate = rate.min(sock.max_pacing_rate);
}

/// Stands in for the kernel's function that sockets in no ensemble use. Any effect is enough to detect the call.
pub fn reno_ssthresh(sock: &Sock) -> u32 {
    (sock.snd_cwnd / 2).max(2)
}

/// Stands in for the kernel's function, like [`reno_ssthresh`].
pub fn reno_cong_avoid(sock: &mut Sock, acked: u32) {
    sock.snd_cwnd += acked;
}
