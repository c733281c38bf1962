//! The background thread that frees the blocks which removed, cleared and shortened objects have left.

use std::{
    sync::{Weak, mpsc},
    thread::{self, JoinHandle},
};

use tokio::runtime::Handle;

use super::{block_on::block_on, drive_core::DriveCore};

/// Starts the thread. Each message makes it free blocks until no work row is left or the storage fails. The thread ends
/// when the last sender is dropped.
pub(crate) fn start(
    core: Weak<DriveCore>,
    wakes: mpsc::Receiver<()>,
    runtime: Option<Handle>,
) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("drive-worker".into()).spawn(move || {
        let _guard = runtime.as_ref().map(Handle::enter);
        while wakes.recv().is_ok() {
            // Take all messages that have arrived: one run serves them all.
            while wakes.try_recv().is_ok() {}
            while let Some(core) = core.upgrade() {
                let is_more = block_on(async {
                    core.admit_change().await?;
                    core.work().await
                });
                if !matches!(is_more, Ok(true)) {
                    break;
                }
            }
        }
    })
}
