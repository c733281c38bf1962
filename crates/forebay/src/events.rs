//! Events: output of `tracing` on stderr, through a queue that never waits for the reader.

use std::backtrace::{Backtrace, BacktraceStatus};

use config::LogLevel;
use control::Failure;
use node::EventLog;
use tracing_subscriber::EnvFilter;

use crate::event_queue::{EventWriter, QUEUE};

pub struct EventFilter {
    /// True if the command line has set the level, which takes precedence over the settings.
    fixed: bool,
    usual: &'static str,
    set: Box<dyn Fn(EnvFilter) + Send + Sync>,
}

/// Starts to show events, at the level of the command line or else at the level `usual`.
pub fn show(
    log_level: Option<&str>,
    verbose: u8,
    usual: &'static str,
) -> Result<EventFilter, Failure> {
    let filter = log_level.unwrap_or(match verbose {
        0 => usual,
        1 => "debug",
        _ => "trace",
    });
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        Failure::settings(format!("--log-level {filter}: {error}")).remedy(
            "write off, error, warn, info, debug or trace, or a filter such as info,cache=debug",
        )
    })?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| EventWriter)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(true)
        // Do not let tracing report its own errors: once stderr has no reader, for example after its terminal was
        // closed, tracing would panic and end the process.
        .log_internal_errors(false)
        .with_filter_reloading();
    let handle = subscriber.reload_handle();
    subscriber.init();
    // This fails only if the subscriber does not exist any more; ours exists as long as the process.
    let set = Box::new(move |filter| drop(handle.reload(filter)));
    Ok(EventFilter { fixed: log_level.is_some() || verbose > 0, usual, set })
}

impl EventLog for EventFilter {
    fn set_level(&self, level: Option<&LogLevel>) {
        let level = level.map_or(self.usual, |level| level.0.as_str());
        // The settings were checked, so the level is valid.
        if let (false, Ok(filter)) = (self.fixed, EnvFilter::try_new(level)) {
            (self.set)(filter);
        }
    }

    fn dropped(&self) -> u64 {
        QUEUE.dropped()
    }

    fn flush(&self) {
        flush();
    }
}

/// Waits at most one second until stderr has accepted all events: a reader that has stopped must not prevent the
/// process from ending.
pub fn flush() {
    QUEUE.flush();
}

/// Writes the final message of the process to stderr after all events, and waits for the reader at most one second.
pub fn say_last(text: &str) {
    QUEUE.put_last(format!("{text}\n").as_bytes());
}

/// Ends the process at a panic. A panic is a bug: print its message, and end at once, before a client gets a response
/// to incomplete work. Acknowledged data is safe, as after any kill.
pub fn end_at_panic() {
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let mut text = format!("thread '{name}' {panic}");
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            text += &format!("\n{backtrace}");
        }
        say_last(&text);
        std::process::abort();
    }));
}
