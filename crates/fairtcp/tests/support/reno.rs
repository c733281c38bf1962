//! The kernel's Reno in Rust, for sockets that are in no ensemble: net/ipv4/tcp_cong.c and tcp_input.c of Linux.

use super::{
    reference_window,
    sock::{CWR, Control, DATA_ACKED, RECOVERY, Sample, Sock},
};

pub struct Reno;

impl Control for Reno {
    fn init(&mut self, _: &mut Sock) {}

    fn release(&mut self, _: &mut Sock) {}

    fn cong_control(&mut self, sock: &mut Sock, sample: &Sample) {
        if matches!(sock.state, CWR | RECOVERY) {
            reference_window::reduce(sock, sample, sock.snd_ssthresh);
        } else if sample.flags & DATA_ACKED != 0 && sock.is_limited() {
            cong_avoid(sock, sample.acked_sacked);
        }
    }

    fn ssthresh(&mut self, sock: &mut Sock) -> u32 {
        sock.member.delivered = 0;
        (sock.snd_cwnd / 2).max(2)
    }

    fn undo_cwnd(&mut self, sock: &mut Sock) -> u32 {
        sock.snd_cwnd.max(sock.prior_cwnd)
    }

    /// At the end of a recovery, sets the window to the whole threshold, like tcp_end_cwnd_reduction().
    fn set_state(&mut self, sock: &mut Sock, state: u8) {
        if matches!(sock.state, CWR | RECOVERY) && state < CWR {
            sock.snd_cwnd = sock.snd_ssthresh;
        }
    }
}

/// Lets the window grow like tcp_reno_cong_avoid().
fn cong_avoid(sock: &mut Sock, mut acked: u32) {
    if sock.snd_cwnd < sock.snd_ssthresh {
        let room = sock.snd_ssthresh - sock.snd_cwnd;
        sock.snd_cwnd += acked.min(room);
        acked -= acked.min(room);
    }
    sock.snd_cwnd_cnt += acked;
    while sock.snd_cwnd_cnt >= sock.snd_cwnd {
        sock.snd_cwnd_cnt -= sock.snd_cwnd;
        sock.snd_cwnd += 1;
    }
}
