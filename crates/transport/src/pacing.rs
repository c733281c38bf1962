//! Limits the rate at which the kernel sends on a connection with a long round trip time.
//!
//! BBR begins with a start-up phase, in which it sends at almost three times the rate that it has
//! measured. The phase ends when the measured rate no longer grows. BBR does not count a round in
//! which the application had nothing to send for a moment (`bbr_check_full_bw_reached` in
//! net/ipv4/tcp_bbr.c). A session that keeps just enough data in flight to fill the link (rate ×
//! round trip time) has such a moment in almost every round. The phase then does not end, and every
//! burst overflows a short queue. [`PacingBound`] bounds the rate in this case.

use std::time::Duration;

use tokio::net::TcpStream;

use crate::socket_options::{self, BbrInfo};

/// The shortest round trip time with which a connection is paced. Connections within one site have
/// a shorter one.
const DISTANT: Duration = Duration::from_millis(1);
/// A pacing rate in bytes per second that no link achieves. Setting it turns pacing on without
/// limiting the rate.
const FASTEST: libc::c_uint = libc::c_uint::MAX - 1;
/// A higher pacing gain than this means that BBR is in its start-up phase, where the gain is 2.89.
/// In the other phases it is at most 1.25.
const START_UP_GAIN: f64 = 2.0;
/// The fraction of the sent bytes that must be lost in the start-up phase before the rate is
/// bounded. It is `BBRLossThresh`, at which later versions of BBR end the start-up phase themselves
/// (draft-ietf-ccwg-bbr, 5.3.1.3).
const LOST: f64 = 0.02;
/// The factors by which the rate that BBR has measured is multiplied to obtain the bound, one for
/// each of eight consecutive round trips. They are BBR's own gains after the start-up phase: it
/// probes for a higher rate, drains the resulting queue, and then keeps the rate (`bbr_pacing_gain`
/// in net/ipv4/tcp_bbr.c).
const GAINS: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// The index of the first gain to use. It drains the queue that the start-up phase has filled.
const DRAIN: usize = 1;
/// While the measured rate grows by this factor per round trip, the start-up phase is useful and
/// the rate is not bounded (`bbr_full_bw_thresh`).
const GROWTH: f64 = 1.25;
/// The number of bytes that a new connection may send at once: ten segments (RFC 6928, 2).
const FIRST_WINDOW: usize = 10 * 1460;
/// The number of bytes that a connection sends before its TCP state is read for the first time, and
/// the least number of bytes that it sends between two readings of the TCP state.
const FIRST_LOOK: u64 = 64 << 10;
/// The maximum number of bytes that are sent between two readings of the TCP state. A reading takes
/// two system calls.
const LAST_LOOK: u64 = 16 << 20;

/// The pacing of one connection. With pacing, the kernel spreads the bytes of a congestion window
/// over the round trip time. Without it, the kernel sends a whole response at once, and this burst
/// overflows the queue of a link that has capacity left.
///
/// Pacing begins with the first output that is longer than [`FIRST_WINDOW`]. A connection with
/// shorter output only is not paced: while its congestion window is small, pacing would delay the
/// third packet of a response of 4 KiB by a twentieth of the round trip time.
#[derive(Debug, Default)]
pub(crate) enum Pacing {
    /// The connection has never had more queued output than [`FIRST_WINDOW`], so it is not paced yet.
    #[default]
    None,
    /// The round trip time is below [`DISTANT`], so the connection is not paced.
    Near,
    /// The kernel limits the rate at which the connection sends.
    Bounded(PacingBound),
}

impl Pacing {
    /// Records that the kernel accepted `count` bytes in one call, which makes `written` bytes
    /// since the connection was made.
    pub(crate) fn note_written(&mut self, socket: &TcpStream, count: usize, written: u64) {
        match self {
            Self::None if count <= FIRST_WINDOW => {}
            Self::None => {
                // Ignore an error: if the socket is broken, its next read or write reports that.
                let trip = socket_options::least_round_trip(socket).unwrap_or_default();
                *self = Self::begin(socket, trip, written);
            }
            Self::Near => {}
            Self::Bounded(bound) => bound.note_written(socket, written),
        }
    }

    fn begin(socket: &TcpStream, round_trip: Duration, written: u64) -> Self {
        if round_trip < DISTANT || socket_options::set_max_pacing_rate(socket, FASTEST).is_err() {
            return Self::Near;
        }
        Self::Bounded(PacingBound::new(written))
    }
}

/// Bounds the rate of a paced connection while packets are lost and BBR's start-up phase continues.
/// Reads the TCP state of the connection about once per round trip.
#[derive(Debug)]
pub(crate) struct PacingBound {
    /// When `written` reaches this number of bytes, the TCP state is read again.
    next_look: u64,
    /// The value of `written` when the TCP state was read last.
    last_look: u64,
    /// The number of bytes that the kernel had retransmitted when the TCP state was last read.
    sent_again: u64,
    /// The rate in bytes per second that BBR had measured when the TCP state was last read.
    measured: u64,
    /// The index of the next gain in [`GAINS`]; `None` if the rate is not bounded.
    gain: Option<usize>,
    /// The bound that is set in the kernel, in bytes per second.
    rate: Option<u32>,
}

impl PacingBound {
    fn new(written: u64) -> Self {
        Self {
            next_look: written + FIRST_LOOK,
            last_look: written,
            sent_again: 0,
            measured: 0,
            gain: None,
            rate: None,
        }
    }

    fn note_written(&mut self, socket: &TcpStream, written: u64) {
        if written < self.next_look {
            return;
        }
        let Ok(Some(bbr)) = socket_options::bbr_info(socket) else {
            self.next_look = u64::MAX;
            return;
        };
        let sent_again = socket_options::bytes_sent_again(socket).unwrap_or(self.sent_again);
        let rate = self.look(bbr, written, sent_again);
        if rate != self.rate
            && socket_options::set_max_pacing_rate(socket, rate.unwrap_or(FASTEST)).is_ok()
        {
            self.rate = rate;
        }
    }

    /// Returns the new bound in bytes per second, computed from the TCP state; `None` for no bound.
    fn look(&mut self, bbr: BbrInfo, written: u64, sent_again: u64) -> Option<u32> {
        let lost = sent_again.saturating_sub(self.sent_again) as f64;
        let sent = written.saturating_sub(self.last_look) as f64;
        self.sent_again = sent_again;
        self.last_look = written;
        let in_round_trip = bbr.rate as f64 * bbr.least_round_trip.as_secs_f64();
        self.next_look = written + (in_round_trip as u64).clamp(FIRST_LOOK, LAST_LOOK);
        let has_grown = bbr.rate as f64 > GROWTH * self.measured as f64;
        self.measured = bbr.rate;
        let is_start_up = bbr.pacing_gain > START_UP_GAIN;
        let begins = lost > LOST * sent && !has_grown;
        let gain = self.gain.or(begins.then_some(DRAIN)).filter(|_| is_start_up);
        self.gain = gain.map(|gain| (gain + 1) % GAINS.len());
        gain.map(|gain| (bbr.rate as f64 * GAINS[gain]).clamp(1.0, f64::from(FASTEST)) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn connection() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    fn highest_rate(socket: &TcpStream) -> libc::c_uint {
        socket_options::get(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE).unwrap()
    }

    #[tokio::test]
    async fn a_distant_connection_is_paced_and_a_near_one_is_not() {
        let (near, _far) = connection().await;
        assert!(matches!(Pacing::begin(&near, DISTANT / 2, 0), Pacing::Near));
        assert_eq!(highest_rate(&near), libc::c_uint::MAX);
        assert!(matches!(Pacing::begin(&near, DISTANT, 0), Pacing::Bounded(_)));
        assert_eq!(highest_rate(&near), FASTEST);
    }

    #[tokio::test]
    async fn a_connection_is_not_paced_while_its_output_is_short() {
        let (near, _far) = connection().await;
        let mut pacing = Pacing::default();
        for written in 1..1000 {
            pacing.note_written(&near, 4144, written * 4144);
        }
        assert!(matches!(pacing, Pacing::None));
        pacing.note_written(&near, 65_536, 4_209_536);
        assert!(!matches!(pacing, Pacing::None));
    }

    const RATE: u64 = 25_000_000;
    const TRIP: Duration = Duration::from_millis(40);
    const IN_ROUND_TRIP: u64 = 1_000_000;

    fn start_up(rate: u64) -> BbrInfo {
        BbrInfo { rate, least_round_trip: TRIP, pacing_gain: 2.89 }
    }

    fn looked(bound: &mut PacingBound, bbr: BbrInfo, sent_again: u64) -> Option<u32> {
        let written = bound.next_look;
        bound.rate = bound.look(bbr, written, sent_again);
        bound.rate
    }

    #[test]
    fn a_start_up_without_losses_has_no_bound() {
        let mut bound = PacingBound::new(0);
        for _ in 0..3 {
            let sent_again = bound.sent_again + IN_ROUND_TRIP / 60;
            assert_eq!(looked(&mut bound, start_up(RATE), sent_again), None);
        }
    }

    #[test]
    fn a_start_up_whose_rate_still_grows_has_no_bound() {
        let mut bound = PacingBound::new(0);
        let lost = IN_ROUND_TRIP / 10;
        for (times, rate) in [(1, RATE / 4), (2, RATE / 2), (3, RATE)] {
            assert_eq!(looked(&mut bound, start_up(rate), times * lost), None);
        }
        assert!(looked(&mut bound, start_up(RATE), 4 * lost).is_some());
    }

    #[test]
    fn a_start_up_with_losses_is_bounded_to_the_gain_of_the_following_phase() {
        let mut bound = PacingBound::new(0);
        assert_eq!(looked(&mut bound, start_up(RATE), 0), None);
        let lost = IN_ROUND_TRIP / 10;
        assert_eq!(looked(&mut bound, start_up(RATE), lost), Some(18_750_000));
        for _ in 2..8 {
            assert_eq!(looked(&mut bound, start_up(RATE), lost), Some(25_000_000));
        }
        assert_eq!(looked(&mut bound, start_up(2 * RATE), lost), Some(62_500_000), "it follows");
        let cruising = BbrInfo { pacing_gain: 1.25, ..start_up(RATE) };
        assert_eq!(looked(&mut bound, cruising, lost), None);
        assert_eq!(looked(&mut bound, start_up(RATE), lost), None, "nothing was lost since");
    }

    #[test]
    fn the_state_is_read_once_in_a_round_trip() {
        let mut bound = PacingBound::new(0);
        looked(&mut bound, start_up(RATE), 0);
        assert_eq!(bound.next_look, FIRST_LOOK + IN_ROUND_TRIP);
        looked(&mut bound, start_up(u64::MAX), 0);
        assert_eq!(bound.next_look, FIRST_LOOK + IN_ROUND_TRIP + LAST_LOOK);
    }
}
