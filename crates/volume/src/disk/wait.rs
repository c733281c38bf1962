//! A wait that is exact to tens of microseconds; tokio's own timers count in milliseconds, and a hit in a disk's cache
//! takes less than one.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::{
    io::unix::AsyncFd,
    time::{Instant, sleep_until},
};

/// tokio rounds up to its next millisecond: so much before is early enough.
const FINE: Duration = Duration::from_millis(2);

/// Waits until it is `due`.
pub(super) async fn until(due: Instant) {
    if due.saturating_duration_since(Instant::now()) > FINE {
        sleep_until(due - FINE).await;
    }
    let left = due.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return;
    }
    // Without a timer (no descriptor is left) the coarse wait below does.
    let _ = ring(left).await;
    // A clock that a test has stopped has not gone on meanwhile.
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
    // SAFETY: an owned descriptor stays the same open file until it is dropped, with this.
    let timer = unsafe { AsyncFd::register(timer) }?;
    timer.readable().await?.retain_ready();
    Ok(())
}
