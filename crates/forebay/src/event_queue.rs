//! The queue between the threads that serve and the one thread that writes to stderr.
//!
//! A terminal or a pipe may accept no text for hours, for example if a log collector has stopped or the user has
//! pressed Ctrl-S. Only the writing thread of this module waits for it. Events that do not fit into the queue are
//! dropped and counted.

use std::{
    cell::Cell,
    collections::VecDeque,
    io,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// The only queue of events in this process, because there is only one stderr.
pub static QUEUE: EventQueue = EventQueue::new();

/// Maximum number of bytes that wait for stderr, including the line that is being written. 1 MiB holds some 6,000
/// events: more than a busy node reports in an hour at level `info`, and little compared with the buffers of one
/// session.
const MOST_BYTES: usize = 1 << 20;

/// Maximum time that the process waits at its end for stderr to accept the last events. A working reader takes
/// milliseconds.
pub const LAST_FLUSH: Duration = Duration::from_secs(1);

/// A bounded queue of event lines for stderr. Each line ends with a line feed.
pub struct EventQueue {
    inner: Mutex<EventQueueState>,
    /// Wakes the writing thread when lines arrive, and flushing threads when all lines are written.
    changed: Condvar,
    dropped: AtomicU64,
}

struct EventQueueState {
    lines: VecDeque<Box<[u8]>>,
    /// Bytes in `lines` and in the line that is being written.
    bytes: usize,
    /// Lines dropped since the last report of dropped lines.
    unreported: u64,
    has_thread: bool,
}

thread_local! {
    /// True in the writing thread, whose own report must not be dropped even if other threads have filled the queue.
    static IS_WRITER: Cell<bool> = const { Cell::new(false) };
}

impl EventQueue {
    const fn new() -> Self {
        let inner =
            EventQueueState { lines: VecDeque::new(), bytes: 0, unreported: 0, has_thread: false };
        Self { inner: Mutex::new(inner), changed: Condvar::new(), dropped: AtomicU64::new(0) }
    }

    /// Queues a line, or drops and counts it if it does not fit. Never waits for stderr.
    pub fn put(&'static self, line: &[u8]) {
        let is_writer = IS_WRITER.get();
        let mut inner = self.inner.lock();
        if inner.bytes + line.len() > MOST_BYTES && !is_writer {
            inner.unreported += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.append(&mut inner, line);
    }

    /// Queues a line even if the queue is full, and waits at most [`LAST_FLUSH`] until all lines are written. For the
    /// final message of the process.
    pub fn put_last(&'static self, line: &[u8]) {
        self.append(&mut self.inner.lock(), line);
        self.flush();
    }

    /// Returns the number of lines dropped since the start of the process.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits at most [`LAST_FLUSH`] until stderr has accepted all lines.
    pub fn flush(&self) {
        let deadline = Instant::now() + LAST_FLUSH;
        let mut inner = self.inner.lock();
        while inner.bytes > 0 {
            if self.changed.wait_until(&mut inner, deadline).timed_out() {
                return;
            }
        }
    }

    fn append(&'static self, inner: &mut EventQueueState, line: &[u8]) {
        inner.bytes += line.len();
        inner.lines.push_back(line.into());
        // The thread starts with the first line, so a command that logs no event has none.
        if !inner.has_thread {
            let named = thread::Builder::new().name("events".to_owned());
            inner.has_thread = named.spawn(|| self.write_for_ever()).is_ok();
        }
        self.changed.notify_all();
    }

    fn write_for_ever(&self) {
        IS_WRITER.set(true);
        let mut inner = self.inner.lock();
        loop {
            let Some(line) = inner.lines.pop_front() else {
                self.changed.wait(&mut inner);
                continue;
            };
            drop(inner);
            let written = write(&line);
            inner = self.inner.lock();
            inner.bytes -= line.len();
            if inner.bytes == 0 {
                self.changed.notify_all();
            }
            if written.is_ok() && inner.unreported > 0 {
                let dropped = std::mem::take(&mut inner.unreported);
                drop(inner);
                tracing::warn!(
                    dropped,
                    remedy = "let the program that reads stderr read faster, or set a lower \
                     `log_level`",
                    "events were dropped because the reader of stderr accepted no text"
                );
                inner = self.inner.lock();
            }
        }
    }
}

/// Writes a line to stderr without a lock of the standard library. A panic or the end of the process would wait for
/// that lock as long as this thread waits for the reader.
fn write(mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match rustix::io::write(rustix::stdio::stderr(), line) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => line = &line[count..],
            Err(rustix::io::Errno::INTR) => {}
            // EAGAIN: another program that shares the terminal or the pipe has made it non-blocking.
            Err(rustix::io::Errno::AGAIN) => thread::sleep(AGAIN_AFTER),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Pause before the next attempt on a non-blocking stderr that is full: short for a person, long for a CPU.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Puts one event into the queue. `tracing` passes each event as one complete line.
pub struct EventWriter;

impl io::Write for EventWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        QUEUE.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
