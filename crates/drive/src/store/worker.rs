//! The background thread that frees the blocks which removed, cleared and shortened objects have left, and goes on with
//! commands that were answered.

use std::{
    sync::{Weak, mpsc},
    thread::{self, JoinHandle},
};

use tokio::runtime::Handle;

use super::{block_on::block_on, drive_core::DriveCore};

/// Starts the thread. Each message makes it free blocks and make steps of jobs in turn, until no job and no work row is
/// left or the storage fails. The thread ends when the last sender is dropped.
pub(crate) fn start(
    core: Weak<DriveCore>,
    wakes: mpsc::Receiver<()>,
    runtime: Option<Handle>,
) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("drive-worker".into()).spawn(move || {
        let _guard = runtime.as_ref().map(Handle::enter);
        while wakes.recv().is_ok() {
            let mut has_work = true;
            while let Some(core) = core.upgrade() {
                // Take all messages that have arrived: one run serves them all.
                while wakes.try_recv().is_ok() {
                    has_work = true;
                }
                if has_work {
                    let is_more = block_on(async {
                        core.admit_change().await?;
                        core.work().await
                    });
                    has_work = matches!(is_more, Ok(true));
                }
                if !block_on(core.job_step()) && !has_work {
                    break;
                }
            }
        }
    })
}
