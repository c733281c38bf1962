//! Stack slots of the programs, gains, and the values of the mode.

use crate::asm::{BpfMemoryOperand, Register::R10};

// Stack slots, in addition to those of `shared_window`.
/// In microseconds: now; the last delivery before the newest acknowledged segment was sent; the last round trip time
/// (negative if there is none); the interval of the rate sample.
pub(super) const NOW: BpfMemoryOperand = R10.double(-56);
pub(super) const PRIOR: BpfMemoryOperand = R10.double(-64);
pub(super) const RTT: BpfMemoryOperand = R10.double(-72);
pub(super) const INTERVAL: BpfMemoryOperand = R10.double(-80);
/// 1 if the sample was application-limited.
pub(super) const LIMITED: BpfMemoryOperand = R10.double(-88);
/// Number of members with data to send, at least 1.
pub(super) const SHARERS: BpfMemoryOperand = R10.double(-96);
/// Segments that a member may have in flight in addition to its part of the path's capacity.
pub(super) const QUANTA: BpfMemoryOperand = R10.double(-104);
/// Segments in flight of all members before this acknowledgment, and of this member after it.
pub(super) const BEFORE: BpfMemoryOperand = R10.double(-112);
pub(super) const OWN: BpfMemoryOperand = R10.double(-120);
/// 1 if the minimum round trip time has expired.
pub(super) const IS_OLD: BpfMemoryOperand = R10.double(-128);
/// 1 if a round begins.
pub(super) const BEGINS: BpfMemoryOperand = R10.double(-136);
/// The bandwidth estimate.
pub(super) const BEST: BpfMemoryOperand = R10.double(-144);
/// The minimum round trip time, microseconds.
pub(super) const LEAST: BpfMemoryOperand = R10.double(-152);
/// Segments delivered in `INTERVAL`.
pub(super) const DELIVERED: BpfMemoryOperand = R10.double(-160);

/// Gains are in units of 1/256.
pub(super) const UNIT: i32 = 256;
/// 2/ln(2), which doubles the rate each round trip (draft, 4.3.2.1), and its inverse.
pub(super) const STARTUP_GAIN: i32 = UNIT * 2885 / 1000 + 1;
pub(super) const DRAIN_GAIN: i32 = UNIT * 1000 / 2885;
/// The gains of draft, 4.3.4.1.
pub(super) const UP_GAIN: i32 = UNIT * 5 / 4;
pub(super) const DOWN_GAIN: i32 = UNIT * 3 / 4;
pub(super) const WINDOW_GAIN: i32 = 2 * UNIT;
/// The bandwidth is the maximum of this number of rounds (draft, 4.1.2.1).
pub(super) const ROUNDS: i32 = 10;
pub(super) const RTT_WINDOW_US: i32 = 10_000_000;
pub(super) const PROBE_RTT_US: i32 = 200_000;
/// A round trip time is similar to the minimum if it exceeds it by at most a sixteenth.
pub(super) const ABOUT_BITS: i32 = 4;
pub(super) const LEAST_WINDOW: i32 = 4;
/// Maximum length of a drain in round trips.
pub(super) const MOST_DRAIN: i32 = 4;
/// Every drain with this number is complete even on a crowded path, to detect whether it is still crowded.
pub(super) const LOOKS_EVERY: i32 = 4;
/// Tolerance in addition to one and a half of the minimum round trip time.
pub(super) const CROWDED_US: i32 = 500;
/// All of the bandwidth is used, not 99 % as in BBR: the next drain removes the queue caused by rounding.
pub(super) const MICROSECONDS: i32 = 1_000_000;

/// The path is full after this number of rounds without growth.
pub(super) const FULL: i32 = 3;

// The values of the field `at::MODE`.
pub(super) const STARTUP: i32 = 0;
pub(super) const DRAIN: i32 = 1;
pub(super) const PROBE_BW: i32 = 2;
pub(super) const PROBE_RTT: i32 = 3;

// Values of the kernel's enum sk_pacing.
pub(super) const SK_PACING_NEEDED: i32 = 1;
