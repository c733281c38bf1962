//! A path model (bandwidth and minimum round trip time), with pacing and windows based on it, as in BBR
//! (draft-cardwell-iccrg-bbr-congestion-control-00). If the members of an ensemble share the model, this module
//! computes the same numbers as the programs of `src/program/shared_model`, in a form that is easier to read. For one
//! connection and with the kernel's rate samples, it computes what BBR does, for comparison. BBR's policer detection is
//! not implemented, nor its handling of aggregated acknowledgments, which do not occur on this path.

use fairtcp::MODEL_BLOCK_BYTES;

use super::{
    reference_window,
    sock::{Control, Follower, INFINITE_SSTHRESH, LOSS, RECOVERY, Sample, Sock},
};

/// The fractional bits of rates, which are in segments per microsecond.
const RATE_BITS: u32 = 24;
/// Gains are in units of 1/256.
const UNIT: u64 = 256;
const STARTUP_GAIN: u64 = UNIT * 2885 / 1000 + 1;
const DRAIN_GAIN: u64 = UNIT * 1000 / 2885;
const UP_GAIN: u64 = UNIT * 5 / 4;
const DOWN_GAIN: u64 = UNIT * 3 / 4;
const ROUNDS: u64 = 10;
const RTT_WINDOW_US: u64 = 10_000_000;
const PROBE_RTT_US: u64 = 200_000;
const LEAST_WINDOW: u32 = 4;
/// The number of rounds without growth of the rate after which the path is full.
const FULL: u64 = 3;

/// How the delivery rate of the path is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// By the kernel's rate samples of one connection, as in BBR.
    Connection,
    /// The rate is the sum of the last delivery rates of all members.
    #[default]
    Ensemble,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    #[default]
    Startup,
    Drain,
    ProbeBandwidth,
    ProbeRtt,
}

/// The control block of an ensemble with a path model. All times are in microseconds.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub measure: Measure,
    pub mode: Mode,
    pub ensemble: ModelEnsemble,
    pub path: PathEstimate,
    pub startup: StartupProgress,
    pub cycle: BandwidthCycle,
    pub probe: RttProbe,
}

/// The members of an ensemble, and the fields of a block that both algorithms have.
#[derive(Clone, Debug, Default)]
pub struct ModelEnsemble {
    pub window: u64,
    pub threshold: u64,
    pub members: u32,
    pub srtt: u32,
    pub rttvar: u32,
    pub undone: u64,
    pub timeouts: u64,
    /// Number of members with data to send.
    pub active: u32,
}

/// The measured properties of the path, and the numbers derived from them.
#[derive(Clone, Debug, Default)]
pub struct PathEstimate {
    /// The sum of the members' last delivery rates.
    pub rate: u64,
    pub in_flight: i64,
    pub round: u64,
    pub round_began: u64,
    pub limited_at: u64,
    pub least_rtt: u64,
    pub least_rtt_at: u64,
    /// The maximum rate of each of the last rounds.
    pub rates: [u64; 16],
}

/// The progress of the search for the bandwidth in `Mode::Startup`.
#[derive(Clone, Debug, Default)]
pub struct StartupProgress {
    pub full_rate: u64,
    pub full_rounds: u64,
}

/// The progress of the cycle of gains in `Mode::ProbeBandwidth`.
#[derive(Clone, Debug, Default)]
pub struct BandwidthCycle {
    pub phase: u64,
    pub phase_began: u64,
    pub cycle_rtt: u64,
    pub is_crowded: bool,
    pub cycles: u64,
}

/// The progress of the probes for the minimum round trip time in `Mode::ProbeRtt`.
#[derive(Clone, Debug, Default)]
pub struct RttProbe {
    pub probe_ends: u64,
    pub probes: u64,
}

/// An acknowledgment, with the state of the ensemble at its arrival.
struct Heard<'a> {
    sample: &'a Sample,
    /// Number of members with data to send.
    sharers: u64,
    /// The number of segments that a member may have in flight in addition to its part of the path's capacity.
    quanta: u64,
    /// The segments in flight of all members before the acknowledgment.
    before: u64,
    is_old: bool,
    round_begins: bool,
}

impl Model {
    /// Returns the bandwidth: the maximum of the last rounds (draft, 4.1.2.1).
    fn bandwidth(&self) -> u64 {
        self.path.rates.into_iter().max().expect("a round")
    }

    /// Returns the product of bandwidth, minimum round trip time and `gain`, in segments.
    fn held(&self, gain: u64) -> u64 {
        (self.bandwidth() * self.path.least_rtt * gain / UNIT).div_ceil(1 << RATE_BITS)
    }

    /// Returns the number of segments that may be in flight with this gain: the result of [`Self::held`] plus the
    /// additional segments that each member may have in flight.
    fn flight(&self, gain: u64, heard: &Heard) -> u64 {
        self.held(gain) + heard.quanta * heard.sharers
    }

    fn pace_gain(&self) -> u64 {
        match (self.mode, self.cycle.phase) {
            (Mode::Startup, _) => STARTUP_GAIN,
            (Mode::Drain, _) => DRAIN_GAIN,
            (Mode::ProbeBandwidth, 0) => UP_GAIN,
            (Mode::ProbeBandwidth, 1) => DOWN_GAIN,
            (Mode::ProbeBandwidth, _) | (Mode::ProbeRtt, _) => UNIT,
        }
    }

    fn window_gain(&self) -> u64 {
        match self.mode {
            Mode::Startup | Mode::Drain => STARTUP_GAIN,
            Mode::ProbeBandwidth => 2 * UNIT,
            Mode::ProbeRtt => UNIT,
        }
    }

    /// Updates the totals of the ensemble with this member's values: the segments in flight, and the number of members
    /// with data to send.
    fn count_in<'a>(&mut self, sock: &mut Sock, sample: &'a Sample) -> Heard<'a> {
        let follower = &mut sock.follower;
        let others = (self.path.in_flight - i64::from(follower.in_flight)).max(0) as u64;
        let own =
            (sock.packets_out + sock.retrans_out).saturating_sub(sock.sacked_out + sock.lost_out);
        self.path.in_flight += i64::from(own) - i64::from(follower.in_flight);
        follower.in_flight = own;
        let is_active = u32::from(sock.packets_out > 0 || sock.has_unsent);
        self.ensemble.active =
            self.ensemble.active.wrapping_add(is_active).wrapping_sub(follower.is_active);
        follower.is_active = is_active;
        let at_once = (sock.pacing_rate >> 10).checked_div(sock.mss_cache.into()).unwrap_or(0);
        Heard {
            sample,
            sharers: u64::from(self.ensemble.active.min(self.ensemble.members.max(1)).max(1)),
            quanta: 3 * at_once.clamp(2, 44),
            before: others + u64::from(sample.prior_in_flight),
            is_old: self.path.least_rtt != 0
                && sample.now_us > self.path.least_rtt_at + RTT_WINDOW_US,
            round_begins: sample.interval_us > 0 && sample.prior_us >= self.path.round_began,
        }
    }

    fn learn(&mut self, follower: &mut Follower, heard: &Heard) {
        self.begin_round(heard);
        self.take_rate(follower, heard.sample);
        self.next_phase(heard);
        if heard.round_begins && !heard.sample.is_app_limited && self.startup.full_rounds < FULL {
            self.look_for_full();
        }
        self.drain(heard);
        self.probe_rtt(heard);
    }

    /// Updates the minimum round trip time. Returns true if the model knows one.
    fn take_rtt(&mut self, heard: &Heard) -> bool {
        if let Some(rtt) = heard.sample.rtt_us {
            let rtt = u64::from(rtt.max(1));
            if self.cycle.cycle_rtt == 0 || rtt < self.cycle.cycle_rtt {
                self.cycle.cycle_rtt = rtt;
            }
            let is_about = self.measure == Measure::Ensemble
                && rtt <= self.path.least_rtt + (self.path.least_rtt >> 4);
            let is_least = self.path.least_rtt == 0 || rtt <= self.path.least_rtt || heard.is_old;
            if is_about || is_least {
                self.path.least_rtt_at = heard.sample.now_us;
            }
            if is_least {
                self.path.least_rtt = rtt;
            }
        }
        self.path.least_rtt != 0
    }

    fn begin_round(&mut self, heard: &Heard) {
        if heard.round_begins {
            self.path.round_began = heard.sample.now_us;
            self.path.round += 1;
            self.path.rates[(self.path.round & 15) as usize] = 0;
            self.path.rates[(self.path.round.wrapping_sub(ROUNDS) & 15) as usize] = 0;
        }
    }

    fn take_rate(&mut self, follower: &mut Follower, sample: &Sample) {
        let is_ensemble = self.measure == Measure::Ensemble;
        if sample.is_app_limited && is_ensemble || self.mode == Mode::ProbeRtt {
            self.path.limited_at = sample.now_us;
        }
        if follower.is_active == 0 {
            self.forget_rate(follower);
        } else if sample.interval_us >= self.path.least_rtt {
            let rate = (u64::from(sample.delivered) << RATE_BITS) / sample.interval_us;
            self.path.rate = self.path.rate.wrapping_add(rate).wrapping_sub(follower.rate);
            follower.rate = rate;
            let is_limited = self.path.limited_at != 0 && sample.prior_us <= self.path.limited_at
                || sample.is_app_limited && !is_ensemble;
            if !is_limited || self.path.rate >= self.bandwidth() {
                let best = &mut self.path.rates[(self.path.round & 15) as usize];
                *best = self.path.rate.max(*best);
            }
        }
    }

    fn forget_rate(&mut self, follower: &mut Follower) {
        self.path.rate = self.path.rate.wrapping_sub(follower.rate);
        follower.rate = 0;
    }

    /// Begins the next phase of the cycle when a phase is over (draft, 4.3.4.3).
    fn next_phase(&mut self, heard: &Heard) {
        if self.mode != Mode::ProbeBandwidth {
            return;
        }
        let now = heard.sample.now_us;
        let is_longer =
            |round_trips: u64| now > self.cycle.phase_began + round_trips * self.path.least_rtt;
        let is_over = match self.cycle.phase {
            0 => {
                is_longer(1)
                    && (heard.sample.losses > 0 || heard.before >= self.flight(UP_GAIN, heard))
            }
            1 if self.cycle.is_crowded && self.cycle.cycles & 3 != 0
                || self.measure == Measure::Connection =>
            {
                is_longer(1) || heard.before <= self.flight(UNIT, heard)
            }
            1 => is_longer(4) || heard.before <= self.held(UNIT),
            _ => is_longer(1),
        };
        if !is_over {
            return;
        }
        self.cycle.phase = (self.cycle.phase + 1) & 7;
        self.cycle.phase_began = now;
        if self.cycle.phase == 0 {
            self.cycle.is_crowded =
                self.cycle.cycle_rtt > self.path.least_rtt + self.path.least_rtt / 2 + 500;
            self.cycle.cycle_rtt = 0;
            self.cycle.cycles += 1;
        }
    }

    /// Detects that the path is full (draft, 4.3.2.2).
    fn look_for_full(&mut self) {
        if self.bandwidth() >= self.startup.full_rate * 5 / 4 {
            (self.startup.full_rate, self.startup.full_rounds) = (self.bandwidth(), 0);
        } else {
            self.startup.full_rounds += 1;
        }
    }

    fn drain(&mut self, heard: &Heard) {
        let now = heard.sample.now_us;
        if self.mode == Mode::Startup && self.startup.full_rounds >= FULL {
            (self.mode, self.cycle.phase_began) = (Mode::Drain, now);
        }
        let is_drained = self.path.in_flight <= self.flight(UNIT, heard) as i64;
        let is_long = now > self.cycle.phase_began + 8 * self.path.least_rtt;
        if self.mode == Mode::Drain && (is_drained || is_long) {
            self.probe_bandwidth(now);
        }
    }

    /// Enters PROBE_BW. Begins with any phase but the draining one, chosen by the clock, so that several ensembles
    /// (groups of connections with one congestion window) on a path do not all probe at the same time.
    fn probe_bandwidth(&mut self, now: u64) {
        self.mode = Mode::ProbeBandwidth;
        self.cycle.phase = match now % 7 {
            0 => 0,
            other => other + 1,
        };
        self.cycle.phase_began = now;
        self.cycle.cycle_rtt = 0;
    }

    /// Enters and leaves PROBE_RTT (draft, 4.3.5).
    fn probe_rtt(&mut self, heard: &Heard) {
        let now = heard.sample.now_us;
        if self.mode != Mode::ProbeRtt {
            if heard.is_old {
                self.mode = Mode::ProbeRtt;
                self.probe.probe_ends = now + PROBE_RTT_US + 2 * self.path.least_rtt;
                self.probe.probes += 1;
            }
        } else if now > self.probe.probe_ends {
            self.path.least_rtt_at = now;
            if self.startup.full_rounds >= FULL {
                self.probe_bandwidth(now);
            } else {
                self.mode = Mode::Startup;
            }
        }
    }

    fn pace(&self, sock: &mut Sock, heard: &Heard) {
        if self.bandwidth() == 0 {
            return;
        }
        let rate = self.bandwidth() * self.pace_gain() / UNIT / heard.sharers;
        // Linux uses 1 % less of the rate for BBR, so that rounding does not cause a queue. An ensemble drains such a
        // queue instead.
        let microseconds = if self.measure == Measure::Connection { 990_000 } else { 1_000_000 };
        let bytes = (rate * u64::from(sock.mss_cache) * microseconds) >> RATE_BITS;
        let bytes = bytes.min(sock.max_pacing_rate);
        if self.startup.full_rounds >= FULL || bytes > sock.pacing_rate {
            sock.pacing_rate = bytes;
        }
    }

    /// Sets the window of a member (draft, 4.2.3).
    fn set_window(&mut self, sock: &mut Sock, heard: &Heard) {
        let probes = u32::from(self.mode == Mode::ProbeRtt);
        if probes != sock.follower.probes_rtt {
            sock.follower.probes_rtt = probes;
            if probes == 1 {
                save(sock, false);
            } else {
                sock.snd_cwnd = sock.snd_cwnd.max(sock.follower.saved);
            }
        }
        let acked = heard.sample.acked_sacked;
        if acked > 0 && !recover(sock, heard.sample) {
            let flight = self.flight(self.window_gain(), heard);
            self.ensemble.window = flight << 16;
            let target = match self.bandwidth() {
                0 => INFINITE_SSTHRESH,
                _ => flight.div_ceil(heard.sharers) as u32,
            };
            if self.startup.full_rounds >= FULL {
                sock.snd_cwnd = target.min(sock.snd_cwnd + acked);
            } else if sock.snd_cwnd < target {
                sock.snd_cwnd += acked;
            }
            sock.snd_cwnd = sock.snd_cwnd.max(LEAST_WINDOW);
        }
        sock.snd_cwnd = sock.snd_cwnd.min(sock.snd_cwnd_clamp);
        if probes == 1 {
            sock.snd_cwnd = sock.snd_cwnd.min(LEAST_WINDOW);
        }
        sock.snd_cwnd = sock.snd_cwnd.max(1);
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![];
        bytes.extend(self.ensemble.window.to_le_bytes());
        bytes.extend(self.ensemble.threshold.to_le_bytes());
        for word in [self.ensemble.members, 0, self.ensemble.srtt, self.ensemble.rttvar] {
            bytes.extend(word.to_le_bytes());
        }
        for counter in [0, 0, 0, 0, self.ensemble.undone, self.ensemble.timeouts] {
            bytes.extend(u64::to_le_bytes(counter));
        }
        bytes.extend(self.ensemble.active.to_le_bytes());
        bytes.extend((self.mode as u32).to_le_bytes());
        let words = [
            self.path.rate,
            self.path.in_flight as u64,
            self.path.round,
            self.path.round_began,
            self.path.limited_at,
            self.path.least_rtt,
            self.path.least_rtt_at,
            self.startup.full_rate,
            self.startup.full_rounds,
            self.cycle.phase,
            self.cycle.phase_began,
            self.probe.probe_ends,
            self.cycle.cycle_rtt,
            self.cycle.is_crowded.into(),
            self.probe.probes,
            self.cycle.cycles,
        ];
        words.into_iter().chain(self.path.rates).for_each(|word| bytes.extend(word.to_le_bytes()));
        assert_eq!(bytes.len(), MODEL_BLOCK_BYTES);
        bytes
    }
}

/// Saves the window that the member gets back after a recovery or PROBE_RTT.
fn save(sock: &mut Sock, probes_rtt: bool) {
    let follower = &mut sock.follower;
    let is_whole = follower.state < u32::from(RECOVERY) && !probes_rtt;
    follower.saved = if is_whole { sock.snd_cwnd } else { follower.saved.max(sock.snd_cwnd) };
}

/// Handles losses (draft, 4.2.3.4): reduces the window by the lost segments, sends for a round trip only as many
/// segments as were delivered (packet conservation), and then restores the previous window. Returns true while packets
/// are conserved.
fn recover(sock: &mut Sock, sample: &Sample) -> bool {
    const RECOVERING: u32 = RECOVERY as u32;
    let follower = &mut sock.follower;
    let kept = follower.in_flight + sample.acked_sacked;
    if sample.losses > 0 {
        sock.snd_cwnd = sock.snd_cwnd.saturating_sub(sample.losses).max(1);
    }
    if sample.prior_us >= follower.conserves_from {
        follower.conserves_from = 0;
    }
    let (before, state) = (follower.state, u32::from(sock.state));
    follower.state = state;
    if state == RECOVERING && before != RECOVERING {
        follower.conserves_from = sample.now_us;
        sock.snd_cwnd = kept;
    } else if state < RECOVERING && before >= RECOVERING {
        follower.conserves_from = 0;
        sock.snd_cwnd = sock.snd_cwnd.max(follower.saved);
    }
    if follower.conserves_from == 0 {
        return false;
    }
    sock.snd_cwnd = sock.snd_cwnd.max(kept);
    true
}

/// The models of all ensembles in a simulation, as a congestion control.
pub struct Models {
    pub models: Vec<Model>,
}

impl Models {
    pub fn new(measures: impl IntoIterator<Item = Measure>) -> Self {
        let model = |measure| Model { measure, ..Model::default() };
        Self { models: measures.into_iter().map(model).collect() }
    }

    /// Returns the bytes of control block `number`, as the BPF map would hold them.
    pub fn block(&self, number: u32) -> Vec<u8> {
        self.models[number as usize].to_bytes()
    }

    fn of(&mut self, sock: &Sock) -> Option<&mut Model> {
        self.models.get_mut(sock.follower.ensemble.checked_sub(1)? as usize)
    }
}

impl Control for Models {
    fn init(&mut self, sock: &mut Sock) {
        // Set all fields to zero, except `state`: it shares its offset with `IS_CUT` of the other algorithm, which
        // begins with 2.
        let follower = &mut sock.follower;
        (follower.ensemble, follower.state, follower.saved) = (0, 2, 0);
        (follower.in_flight, follower.is_active) = (0, 0);
        let Some(number) = sock.assigned else { return };
        let Some(model) = self.models.get_mut(number as usize) else { return };
        (follower.state, follower.probes_rtt, follower.conserves_from) = (0, 0, 0);
        follower.rate = 0;
        follower.ensemble = number + 1;
        model.ensemble.members += 1;
        if model.ensemble.members == 1 {
            model.ensemble.window = u64::from(sock.snd_cwnd) << 16;
            model.ensemble.threshold = u64::from(sock.snd_ssthresh) << 16;
        }
        if sock.pacing_status == 0 {
            sock.pacing_status = 1;
        }
        // Assume a round trip time of one millisecond until one was measured.
        let rtt = if sock.srtt_us < 8 { 1000 } else { u64::from(sock.srtt_us / 8) };
        let window = u64::from(sock.snd_cwnd) * u64::from(sock.mss_cache);
        sock.pacing_rate = window * (1_000_000 / UNIT) * STARTUP_GAIN / rtt;
    }

    fn release(&mut self, sock: &mut Sock) {
        let mut follower = sock.follower;
        let Some(model) = self.of(sock) else { return };
        model.forget_rate(&mut follower);
        model.path.in_flight -= i64::from(follower.in_flight);
        model.ensemble.active = model.ensemble.active.wrapping_sub(follower.is_active);
        let members = u64::from(model.ensemble.members.max(1));
        if members > 1 {
            let window = (model.ensemble.window as i64).max(2 * (1 << 16) * members as i64) as u64;
            model.ensemble.window = model.ensemble.window.wrapping_sub(window / members);
        }
        model.ensemble.members = model.ensemble.members.wrapping_sub(1);
        follower.ensemble = 0;
        sock.follower = follower;
    }

    fn cong_control(&mut self, sock: &mut Sock, sample: &Sample) {
        if self.of(sock).is_none() {
            // `saved` shares its offset with `delivered` of the other algorithm, which handles sockets in no ensemble.
            sock.member = super::sock::Member::default();
            sock.member.delivered = sock.follower.saved;
            reference_window::control_plain(sock, sample);
            sock.follower.saved = sock.member.delivered;
            sock.member.delivered = 0;
            return;
        }
        let model = self.models.get_mut(sock.follower.ensemble as usize - 1).expect("as above");
        (model.ensemble.srtt, model.ensemble.rttvar) = (sock.srtt_us, sock.rttvar_us);
        let heard = model.count_in(sock, sample);
        if model.take_rtt(&heard) {
            model.learn(&mut sock.follower, &heard);
            model.pace(sock, &heard);
            model.set_window(sock, &heard);
        }
    }

    fn ssthresh(&mut self, sock: &mut Sock) -> u32 {
        let Some(model) = self.of(sock) else {
            sock.follower.saved = 0;
            return reference_window::reno_ssthresh(sock);
        };
        let probes = model.mode == Mode::ProbeRtt;
        save(sock, probes);
        sock.snd_ssthresh
    }

    fn undo_cwnd(&mut self, sock: &mut Sock) -> u32 {
        if let Some(model) = self.of(sock) {
            model.startup.full_rate = 0;
            if model.startup.full_rounds < FULL {
                model.startup.full_rounds = 0;
            }
            model.ensemble.undone += 1;
        }
        sock.snd_cwnd.max(sock.prior_cwnd)
    }

    fn set_state(&mut self, sock: &mut Sock, state: u8) {
        let mut follower = sock.follower;
        let Some(model) = self.of(sock) else { return };
        if state == LOSS {
            model.ensemble.timeouts += 1;
            model.startup.full_rate = 0;
            model.forget_rate(&mut follower);
            follower.state = LOSS.into();
            sock.follower = follower;
        }
    }
}
