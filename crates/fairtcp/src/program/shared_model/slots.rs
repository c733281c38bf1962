//! The stack slots of the programs with a path model, the gains, and the values of the mode.

use crate::asm::{BpfMemoryOperand, Register::R10};

// Stack slots of this program, in addition to those in `shared_window`.
/// Stack slot: the present time in microseconds, which is also the unit of the next three slots.
pub(super) const NOW: BpfMemoryOperand = R10.double(-56);
/// The time of the last delivery before the newest acknowledged segment was sent.
pub(super) const PRIOR: BpfMemoryOperand = R10.double(-64);
/// The last round trip time; negative if none was measured.
pub(super) const RTT: BpfMemoryOperand = R10.double(-72);
/// The interval of the rate sample.
pub(super) const INTERVAL: BpfMemoryOperand = R10.double(-80);
/// 1 if the rate sample was application-limited, otherwise 0.
pub(super) const LIMITED: BpfMemoryOperand = R10.double(-88);
/// The number of members with data to send, at least 1.
pub(super) const SHARERS: BpfMemoryOperand = R10.double(-96);
/// The number of segments that a member may have in flight in addition to its part of what the path holds.
pub(super) const QUANTA: BpfMemoryOperand = R10.double(-104);
/// The number of segments that all members of the ensemble together had in flight before this acknowledgment.
pub(super) const BEFORE: BpfMemoryOperand = R10.double(-112);
/// The number of segments that this member, the connection that received the acknowledgment, has in flight after it.
pub(super) const OWN: BpfMemoryOperand = R10.double(-120);
/// 1 if the minimum round trip time has expired, otherwise 0.
pub(super) const IS_OLD: BpfMemoryOperand = R10.double(-128);
/// 1 if a round (about one round trip) begins with this acknowledgment, otherwise 0.
pub(super) const BEGINS: BpfMemoryOperand = R10.double(-136);
/// The estimate of the bandwidth: the highest rate of the last rounds.
pub(super) const BEST: BpfMemoryOperand = R10.double(-144);
/// The minimum round trip time in microseconds.
pub(super) const LEAST: BpfMemoryOperand = R10.double(-152);
/// The segments that were delivered in `INTERVAL`.
pub(super) const DELIVERED: BpfMemoryOperand = R10.double(-160);

/// A gain of 1: gains are in units of 1/256.
pub(super) const UNIT: i32 = 256;
/// The gain 2/ln(2), with which the rate doubles in each round trip (draft, 4.3.2.1). [`DRAIN_GAIN`] is its inverse.
pub(super) const STARTUP_GAIN: i32 = UNIT * 2885 / 1000 + 1;
pub(super) const DRAIN_GAIN: i32 = UNIT * 1000 / 2885;
/// The gains in PROBE_BW (draft, 4.3.4.1).
pub(super) const UP_GAIN: i32 = UNIT * 5 / 4;
pub(super) const DOWN_GAIN: i32 = UNIT * 3 / 4;
pub(super) const WINDOW_GAIN: i32 = 2 * UNIT;
/// The number of rounds whose highest rate is the bandwidth (draft, 4.1.2.1).
pub(super) const ROUNDS: i32 = 10;
pub(super) const RTT_WINDOW_US: i32 = 10_000_000;
pub(super) const PROBE_RTT_US: i32 = 200_000;
/// A round trip time is similar to the minimum if it exceeds the minimum by at most a sixteenth. The code divides by 16
/// with a shift by this number of bits.
pub(super) const ABOUT_BITS: i32 = 4;
pub(super) const LEAST_WINDOW: i32 = 4;
/// The maximum length of a drain in round trips.
pub(super) const MOST_DRAIN: i32 = 4;
/// On a crowded path, a drain normally ends after one round trip. One in this number of drains goes on until the queue
/// is empty, to find out if the path is still crowded.
pub(super) const LOOKS_EVERY: i32 = 4;
/// A path is crowded if the shortest round trip time of a cycle exceeds 1.5 times the minimum round trip time by more
/// than this number of microseconds.
pub(super) const CROWDED_US: i32 = 500;
/// Microseconds per second; converts a rate per microsecond. BBR uses 990,000 instead and paces at 99 % of the
/// bandwidth, so that rounding causes no queue. An ensemble paces at the whole bandwidth; its next drain removes such a
/// queue.
pub(super) const MICROSECONDS: i32 = 1_000_000;

/// The number of rounds without growth of the rate after which the path is full.
pub(super) const FULL: i32 = 3;

// The values of the field `at::MODE`.
pub(super) const STARTUP: i32 = 0;
pub(super) const DRAIN: i32 = 1;
pub(super) const PROBE_BW: i32 = 2;
pub(super) const PROBE_RTT: i32 = 3;

// Values of the kernel's enum sk_pacing.
pub(super) const SK_PACING_NEEDED: i32 = 1;
