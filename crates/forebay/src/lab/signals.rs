//! SIGINT, SIGTERM and SIGHUP during a command of the laboratory.

use std::time::{Duration, Instant};

use control::Failure;
use tokio::signal::unix::{SignalKind, signal};

/// Signals within this time of the first one count as the same request: timeout(1) signals a program and then its
/// process group, which includes the program.
const SAME: Duration = Duration::from_millis(500);

/// Calls `at_first` on the first signal, so that everything ends in order. On the second signal, calls `at_second` and
/// ends the process.
pub fn act(
    at_first: impl FnOnce() + Send + 'static,
    at_second: impl FnOnce() + Send + 'static,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::new)?;
    let caught = {
        let _inside = runtime.enter();
        [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal)
    };
    let [interrupt, terminate, hangup] = caught;
    let (mut interrupt, mut terminate, mut hangup) = (
        interrupt.map_err(Failure::new)?,
        terminate.map_err(Failure::new)?,
        hangup.map_err(Failure::new)?,
    );
    let mut wait = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        });
    };
    let act = move || {
        wait();
        let begun = Instant::now();
        at_first();
        wait();
        while begun.elapsed() < SAME {
            wait();
        }
        at_second();
        // When this process exits, the kernel signals every program that it has started (prctl(2), PR_SET_PDEATHSIG).
        std::process::exit(1);
    };
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(act);
    thread.map(drop).map_err(|error| {
        Failure::new(format!("cannot start a thread: {error}")).remedy(
            "raise the limit of processes (`ulimit -u`, TasksMax= of systemd), or free memory",
        )
    })
}
