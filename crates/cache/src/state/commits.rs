//! Serials of writes: up to which serial writes are in the log, and the calls that wait for a serial.

use std::{collections::VecDeque, task::Waker};

use volume::Error;

/// A call that waits for a serial to become durable.
struct Waiter {
    serial: u64,
    id: u64,
    waker: Waker,
}

/// The serials of writes, and the calls that wait for writes to be in the log.
pub(crate) struct Commits {
    /// The serial of the newest write.
    pub serial: u64,
    /// Every write with a serial up to this one is stable in the log.
    pub durable: u64,
    /// Recovery is sure to find every write up to this serial in the log: the highest value of `complete` in a
    /// superblock, or in a segment that ended an epoch. After an opening, the serial may be below `durable`.
    pub logged: u64,
    /// The newest write that the NVRAM holds, or held until the log had it. With NVRAMs in front of a pair's
    /// log, it is the newest write in the log.
    pub kept: u64,
    /// True if NVRAMs are in front of the log disk. Only `CacheCore::log_on_disk` raises `logged` then.
    pub log_is_buffered: bool,
    /// The error of a failing log disk. Writes up to this serial got the error.
    pub failure: Option<(u64, Error)>,
    /// The waiting calls, sorted by serial.
    waiters: VecDeque<Waiter>,
    next_waiter: u64,
}

impl Commits {
    /// Starts with a log that ends with write `serial`.
    pub fn new(serial: u64) -> Self {
        Self {
            serial,
            durable: serial,
            logged: 0,
            kept: 0,
            log_is_buffered: false,
            failure: None,
            waiters: VecDeque::new(),
            next_waiter: 0,
        }
    }

    pub fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Records that the log disk fails. Returns the wakers of all waiting calls; they get the error, and may
    /// call again later.
    pub fn fail(&mut self, error: Error) -> Vec<Waker> {
        self.failure = Some((self.serial, error));
        self.take_wakers()
    }

    /// Records that the log disk fails for good: every later write gets this error, and no more segments are
    /// written. Returns the wakers of all waiting calls.
    pub fn fail_for_good(&mut self, error: Error) -> Vec<Waker> {
        self.failure = Some((u64::MAX, error));
        self.take_wakers()
    }

    /// Returns the error that the write with this serial got from the log disk, if it failed.
    pub fn failure_of(&self, serial: u64) -> Option<&Error> {
        self.failure.as_ref().filter(|(failed, _)| *failed >= serial).map(|(_, error)| error)
    }

    /// Removes all waiting calls, and returns their wakers.
    pub fn take_wakers(&mut self) -> Vec<Waker> {
        self.waiters.drain(..).map(|waiter| waiter.waker).collect()
    }

    /// Removes the calls whose writes are durable now, and returns their wakers.
    pub fn take_durable(&mut self) -> Vec<Waker> {
        let complete = self.waiters.partition_point(|waiter| waiter.serial <= self.durable);
        self.waiters.drain(..complete).map(|waiter| waiter.waker).collect()
    }

    /// Arranges that `waker` is woken when `serial` is durable or has failed. Returns the id of the waiting
    /// call. A repeated call for the same serial passes the id from the first call, and replaces the waker.
    pub fn wait(&mut self, serial: u64, id: Option<u64>, waker: Waker) -> u64 {
        if let Some((at, id)) = self.find(serial, id).zip(id) {
            self.waiters[at].waker = waker;
            return id;
        }
        let id = self.next_waiter;
        self.next_waiter += 1;
        let at = self.waiters.partition_point(|waiter| waiter.serial <= serial);
        self.waiters.insert(at, Waiter { serial, id, waker });
        id
    }

    /// Removes a waiting call from the list if it has not been woken.
    pub fn stop_waiting(&mut self, serial: u64, id: u64) {
        if let Some(at) = self.find(serial, Some(id)) {
            self.waiters.remove(at);
        }
    }

    fn find(&self, serial: u64, id: Option<u64>) -> Option<usize> {
        let id = id?;
        let first = self.waiters.partition_point(|waiter| waiter.serial < serial);
        self.waiters
            .range(first..)
            .take_while(|waiter| waiter.serial == serial)
            .position(|waiter| waiter.id == id)
            .map(|at| first + at)
    }
}
