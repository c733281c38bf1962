//! What the program tells while it runs: `tracing` events on stderr.

use tracing_subscriber::EnvFilter;

use crate::failure::Failure;

/// Shows events as the command line asks; `usual` if it does not.
pub fn show(log_level: Option<&str>, verbose: u8, usual: &str) -> Result<(), Failure> {
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
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(true)
        .init();
    Ok(())
}

/// A panic is a bug: its message is shown and the process ends at once, before half-done work can
/// answer anybody. What was acknowledged is safe, as after any kill.
pub fn end_at_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        std::process::abort();
    }));
}
