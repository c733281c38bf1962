//! The thread that frees in the background what removed objects, CLEAR and shorter objects leave over.

use std::{
    sync::{Weak, mpsc},
    thread::{self, JoinHandle},
};

use tokio::runtime::Handle;

use super::{block_on::block_on, drive_core::DriveCore};

/// Starts the thread. It works whenever it gets a message, until no work is left or the storage fails; the next message
/// makes it try again. It ends with the last sender.
pub(crate) fn start(
    core: Weak<DriveCore>,
    wakes: mpsc::Receiver<()>,
    runtime: Option<Handle>,
) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("drive-worker".into()).spawn(move || {
        let _guard = runtime.as_ref().map(Handle::enter);
        while wakes.recv().is_ok() {
            // One run is enough for all messages so far.
            while wakes.try_recv().is_ok() {}
            while let Some(core) = core.upgrade() {
                let is_more = block_on(async {
                    core.admit_change().await?;
                    core.free_step(None).await
                });
                if !matches!(is_more, Ok(true)) {
                    break;
                }
            }
        }
    })
}
