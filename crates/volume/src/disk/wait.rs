//! Waits with a precision of some ten microseconds. The timers of tokio have a resolution of a millisecond, and a hit
//! in the cache of a disk takes less than that.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::{
    io::unix::AsyncFd,
    time::{Instant, sleep_until},
};

/// The wait with tokio ends this long before the due time, because tokio rounds up to its next millisecond. A timer of
/// the kernel waits for the rest.
const FINE: Duration = Duration::from_millis(2);

pub(super) async fn until(due: Instant) {
    if due.saturating_duration_since(Instant::now()) > FINE {
        sleep_until(due - FINE).await;
    }
    let left = due.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return;
    }
    // If the kernel's timer cannot be created (no descriptor is free), the wait with tokio below is precise enough.
    let _ = ring(left).await;
    // A test can pause the clock of tokio. In such a test tokio's clock has not advanced during the wait above.
    if Instant::now() < due {
        sleep_until(due).await;
    }
}

async fn ring(left: Duration) -> io::Result<()> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer: OwnedFd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let value = Timespec { tv_sec: 0, tv_nsec: left.min(FINE).subsec_nanos().into() };
    let once = Itimerspec { it_interval: Timespec::default(), it_value: value };
    rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once)?;
    // SAFETY: `timer` owns its descriptor, which therefore stays the same open file until the registration is dropped.
    let timer = unsafe { AsyncFd::register(timer) }?;
    timer.readable().await?.retain_ready();
    Ok(())
}
