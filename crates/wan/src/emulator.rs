//! The thread that carries packets: one loop over two devices. The thread sleeps until a packet is received
//! or a packet in flight arrives.

use std::{
    io,
    num::NonZeroU64,
    os::fd::OwnedFd,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, TryRecvError},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::{
    DirectionCounters, DirectionSettings, LinkDirection, PacketFate,
    cpu_latency::CpuLatencyRequest,
    oversleep::Oversleep,
    packet::{LONGEST, OFFLOAD_HEADER, Packet},
    packet_capture::Capture,
    packets_in_flight::{Arriving, PacketsInFlight},
    system_calls,
    timeliness::{Lateness, Timeliness},
};

/// The thread that carries packets between the devices at the two ends of a link.
#[derive(Debug)]
pub(crate) struct Emulator {
    /// The TUN devices at the near end and at the far end of the link.
    pub devices: [OwnedFd; 2],
    /// The direction from the near end to the far end, and the opposite direction.
    pub lanes: [Lane; 2],
    pub orders: Receiver<EmulatorCommand>,
    /// An eventfd that is readable while `orders` has commands.
    pub wake: Arc<OwnedFd>,
    pub health: Timeliness,
    pub capture: Option<Capture>,
    pub is_real_time: bool,
    /// Keeps the processors awake; `None` before the thread runs, or if the host does not allow it.
    pub awake: Option<CpuLatencyRequest>,
    pub oversleep: Oversleep,
}

#[derive(Debug)]
pub(crate) enum EmulatorCommand {
    /// Use these settings from now on. The caller has checked them.
    Change(Box<[DirectionSettings; 2]>),
    /// Discard the lateness of packets and the steal time that were measured so far. From now on, measure them again,
    /// to judge whether the machine delivers packets on time.
    JudgeFromNow,
    Report(SyncSender<LinkReport>),
    End,
}

#[derive(Debug)]
pub(crate) struct Lane {
    direction: LinkDirection,
    flight: PacketsInFlight,
    no_room: u64,
    malformed: u64,
    refused: u64,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct LinkReport {
    pub near_to_far: LaneReport,
    pub far_to_near: LaneReport,
    pub lateness: Lateness,
    /// Steal time: the share of the processors' time that the hypervisor gave to other machines; `None` if the machine
    /// does not report it.
    pub stolen: Option<f64>,
    /// True if the thread has real-time priority (SCHED_FIFO).
    pub real_time: bool,
    /// True if idle processors are kept awake.
    pub awake: bool,
    /// Reasons why the results of this run cannot be trusted; empty if there are none.
    pub tainted: Vec<String>,
    /// Packets missing in the capture; `None` without a capture.
    pub capture_missed: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct LaneReport {
    #[serde(flatten)]
    pub counters: DirectionCounters,
    /// Number of packets dropped for lack of memory; if netem emulates the link, packets beyond netem's own limit.
    pub no_room: u64,
    /// Number of packets from the sending end's device that are not valid IP packets.
    pub malformed: u64,
    /// Number of packets that the device at the receiving end has refused.
    pub refused: u64,
    pub in_flight_bytes: u64,
}

/// TCP segments that the emulator received as one packet are delivered together, at the arrival time of the last one,
/// if their arrival times differ by at most this. This uses half of the tolerance of the delay (100 us), and saves most
/// of the writes to the device.
const TOGETHER: Duration = Duration::from_micros(50);
/// Maximum number of packets that the emulator delivers, and that it receives, for one direction before it serves the
/// other one: some 100 us of work.
const GIVEN_AT_ONCE: usize = 64;
const TAKEN_AT_ONCE: usize = 32;
/// Maximum sleep: background traffic has to be updated once a second.
const SLEEP: Duration = Duration::from_millis(100);

impl Lane {
    pub fn new(direction: LinkDirection) -> Self {
        Self { direction, flight: PacketsInFlight::default(), no_room: 0, malformed: 0, refused: 0 }
    }

    /// Decides for each segment of a packet from the device whether and when it arrives.
    fn take(&mut self, now: Instant, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else {
            self.malformed += 1;
            return;
        };
        // The segments that will be delivered together: the index of the first one, its arrival time, and the arrival
        // time of the last one so far.
        let mut together: Option<(usize, Instant, Instant)> = None;
        for segment in 0..packet.segments() {
            let fate = self.direction.admit(now, packet.segment_bytes(segment));
            let plain = match fate {
                PacketFate::Passes(way) if !way.is_doubled && way.changed_bit.is_none() => {
                    Some(way.at)
                }
                _ => None,
            };
            together = match (together, plain) {
                (Some((first, begins, ends)), Some(at))
                    if at >= ends && at - begins <= TOGETHER =>
                {
                    Some((first, begins, at))
                }
                (before, plain) => {
                    if let Some((first, _, ends)) = before {
                        self.begin(ends, &packet, first..segment, None);
                    }
                    plain.map(|at| (segment, at, at))
                }
            };
            if let (None, PacketFate::Passes(way)) = (plain, fate) {
                for _ in 0..1 + usize::from(way.is_doubled) {
                    self.begin(way.at, &packet, segment..segment + 1, way.changed_bit);
                }
            }
        }
        if let Some((first, _, ends)) = together {
            self.begin(ends, &packet, first..packet.segments(), None);
        }
    }

    fn begin(
        &mut self,
        at: Instant,
        packet: &Packet,
        run: std::ops::Range<usize>,
        changed_bit: Option<u64>,
    ) {
        let count = run.len() as u64;
        if !self.flight.begin(at, packet, run, changed_bit) {
            self.no_room += count;
        }
    }

    fn report(&self) -> LaneReport {
        LaneReport {
            counters: self.direction.counters(),
            no_room: self.no_room,
            malformed: self.malformed,
            refused: self.refused,
            in_flight_bytes: self.flight.bytes(),
        }
    }
}

impl Emulator {
    /// Carries packets until a command ends the thread.
    ///
    /// # Errors
    /// If a device has been removed.
    pub fn run(mut self) -> io::Result<()> {
        // Set the smallest timer slack, so that the kernel does not wake this thread up to 50 us too late. Ignore an
        // error: packets then arrive later.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        self.is_real_time = system_calls::run_first().is_ok();
        self.awake = CpuLatencyRequest::ask().ok();
        let mut buffer = vec![0; LONGEST];
        let mut head = Vec::new();
        loop {
            if self.obey() {
                return Ok(());
            }
            let mut worked = false;
            for lane in 0..2 {
                worked |= self.give(lane, &mut head)?;
                worked |= self.take(lane, &mut buffer)?;
            }
            if !worked {
                self.sleep()?;
            }
        }
    }

    /// Executes the commands that wait in `orders`. Returns true if the emulator's thread has to end.
    fn obey(&mut self) -> bool {
        loop {
            match self.orders.try_recv() {
                Ok(EmulatorCommand::Change(settings)) => {
                    let now = Instant::now();
                    for (lane, settings) in self.lanes.iter_mut().zip(*settings) {
                        let changed = lane.direction.change(settings, now);
                        debug_assert_eq!(changed, Ok(()), "they were checked");
                    }
                }
                Ok(EmulatorCommand::JudgeFromNow) => {
                    self.health = Timeliness::since(self.no_room())
                }
                Ok(EmulatorCommand::Report(answer)) => {
                    // The caller may no longer wait for the report.
                    let _ = answer.try_send(self.report());
                }
                Ok(EmulatorCommand::End) | Err(TryRecvError::Disconnected) => return true,
                Err(TryRecvError::Empty) => return false,
            }
        }
    }

    /// Writes the packets of this lane whose arrival time has come to the device at the receiving
    /// end. Returns false if there was none.
    fn give(&mut self, lane: usize, head: &mut Vec<u8>) -> io::Result<bool> {
        for given in 0..GIVEN_AT_ONCE {
            let now = Instant::now();
            let Some(arrived) = self.lanes[lane].flight.arrive(now) else { return Ok(given > 0) };
            self.health.late(now - arrived.at);
            let Arriving { packet, run, changed_bit, .. } = arrived;
            let changed = changed_bit.map(|bit| packet.changed(run.start, bit));
            let pieces: [&[u8]; 2] = match &changed {
                Some(changed) => [changed, &[]],
                None => packet.run(run, head),
            };
            if let Some(capture) = &mut self.capture {
                capture.record(now, [&pieces[0][OFFLOAD_HEADER..], pieces[1]]);
            }
            let slices = pieces.map(io::IoSlice::new);
            match rustix::io::writev(&self.devices[1 - lane], &slices) {
                Ok(_) => {}
                Err(Errno::BADFD) => return Err(Errno::BADFD.into()),
                // The device refused the packet: it is down or out of memory, or the packet is invalid because a bit
                // was changed.
                Err(_) => self.lanes[lane].refused += 1,
            }
        }
        Ok(true)
    }

    /// Reads packets from the device at the sending end of this lane. Returns false if there was
    /// none.
    fn take(&mut self, lane: usize, buffer: &mut [u8]) -> io::Result<bool> {
        for taken in 0..TAKEN_AT_ONCE {
            match rustix::io::read(&self.devices[lane], &mut *buffer) {
                Ok(bytes) => self.lanes[lane].take(Instant::now(), &buffer[..bytes]),
                Err(Errno::AGAIN) => return Ok(taken > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Sleeps until a device has a packet, a packet in flight is due, or a command arrives; at most
    /// for [`SLEEP`].
    fn sleep(&mut self) -> io::Result<()> {
        let now = Instant::now();
        self.lanes.iter_mut().for_each(|lane| lane.direction.advance(now));
        let next = self.lanes.iter().filter_map(|lane| lane.flight.next()).min();
        let left = next.map_or(SLEEP, |next| next.saturating_duration_since(now).min(SLEEP));
        // If the next packet is due soon, do not sleep: even the shortest sleep would end too late.
        let Some(sleep) = left.checked_sub(self.oversleep.estimate()).filter(|s| !s.is_zero())
        else {
            return Ok(());
        };
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(sleep.subsec_nanos()) };
        let [near, far] = &self.devices;
        let mut waited = [near, far, &*self.wake].map(|fd| PollFd::new(fd, PollFlags::IN));
        match poll(&mut waited, Some(&timeout)) {
            Ok(0) => self.oversleep.observe(now.elapsed().saturating_sub(sleep)),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if waited[2].revents().contains(PollFlags::IN) {
            // Reset the event counter, so that the next poll waits.
            let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        }
        Ok(())
    }

    /// Returns the number of packets that were dropped for lack of memory since the link was made.
    fn no_room(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.no_room).sum()
    }

    fn report(&mut self) -> LinkReport {
        let now = Instant::now();
        self.lanes.iter_mut().for_each(|lane| lane.direction.advance(now));
        let [near_to_far, far_to_near] = self.lanes.each_ref().map(Lane::report);
        let (lateness, stolen) = (self.health.lateness(), self.health.stolen());
        LinkReport {
            near_to_far,
            far_to_near,
            lateness,
            stolen,
            real_time: self.is_real_time,
            awake: self.awake.is_some(),
            tainted: self.health.taints(&lateness, stolen, self.no_room()),
            capture_missed: self.capture.as_ref().map(Capture::missed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PacketLossModel;

    #[test]
    fn segments_are_decided_one_by_one_and_leave_in_their_order() {
        let now = Instant::now();
        let settings = DirectionSettings {
            loss: PacketLossModel::Random(0.2),
            rate: Some(1_000_000_000),
            queue_bytes: 1 << 20,
            ..DirectionSettings::default()
        };
        let mut alone = LinkDirection::new(settings.clone(), 1, now).unwrap();
        let mut lane = Lane::new(LinkDirection::new(settings, 1, now).unwrap());
        let whole = crate::packet::tests::many(true);
        let packet = Packet::parse(&whole).unwrap();
        let mut expected = 0;
        for _ in 0..100 {
            lane.take(now, &whole);
            for segment in 0..packet.segments() {
                let fate = alone.admit(now, packet.segment_bytes(segment));
                expected += usize::from(matches!(fate, PacketFate::Passes(_)));
            }
        }
        let end = now + Duration::from_secs(1);
        let (mut arrived, mut last) = (0, now);
        while let Some(arriving) = lane.flight.arrive(end) {
            arrived += arriving.run.len();
            assert!(arriving.at >= last);
            last = arriving.at;
        }
        assert_eq!(arrived, expected);
        assert_eq!(lane.report().counters, alone.counters());
    }

    #[test]
    fn segments_that_arrive_together_are_delivered_as_one_packet() {
        let now = Instant::now();
        let whole = crate::packet::tests::many(false);
        let runs = |settings: DirectionSettings| {
            let mut lane = Lane::new(LinkDirection::new(settings, 1, now).unwrap());
            lane.take(now, &whole);
            let end = now + Duration::from_secs(10);
            let runs = std::iter::from_fn(|| lane.flight.arrive(end)).map(|one| one.run);
            runs.collect::<Vec<_>>()
        };
        let usual = DirectionSettings::default;
        assert_eq!(runs(usual()), vec![0..4]);
        // 1110 bytes take 22 us on this wire, so the first and the third packet are 44 us apart.
        assert_eq!(
            runs(DirectionSettings { rate: Some(400_000_000), ..usual() }),
            vec![0..3, 3..4]
        );
        assert_eq!(runs(DirectionSettings { rate: Some(1_000_000), ..usual() }).len(), 4);
        assert_eq!(runs(DirectionSettings { duplicate: 1.0, ..usual() }).len(), 8);
        assert_eq!(runs(DirectionSettings { corrupt: 1.0, ..usual() }).len(), 4);
    }
}
