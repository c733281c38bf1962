//! Maintains the log's index: adds the header of every stable segment to a frame, and writes full frames to
//! the log disk in the background.
//!
//! A frame that cannot be written is dropped: recovery then reads its segments in full.

use std::sync::Arc;

use journal::segment::SegmentHeader;
use volume::{ConditionChange, Data, Durability};

use crate::core::CacheCore;

impl CacheCore {
    /// Adds a stable segment, which begins in block `start`, to the index.
    pub fn index_segment(self: &Arc<Self>, start: u32, header: &SegmentHeader) {
        self.log.index.lock().note(start, header);
        self.start_index();
    }

    /// Starts the task that writes frames of the index, if a frame waits and the task is not running.
    pub fn start_index(self: &Arc<Self>) {
        if self.log.index.lock().start() {
            tokio::spawn(write_frames(Arc::clone(self)));
        }
    }
}

async fn write_frames(shared: Arc<CacheCore>) {
    loop {
        let Some((lba, frame)) = shared.log.index.lock().take() else {
            shared.signals.changed.notify_waiters();
            return;
        };
        // Write the frame as stable: otherwise all frames since the last power-on could be missing after a
        // power failure.
        let written =
            shared.log.volume.write(lba, Data::from(frame.bytes), Durability::Stable).await;
        let change = shared.state.lock().log.index_fails.turn(written.is_err());
        match written {
            Ok(()) => {
                if let Some(ConditionChange::Ends(lasted)) = change {
                    let lasted_s = lasted.as_secs();
                    tracing::info!(lasted_s, "the index of the log can be written again");
                }
                shared.log.index.lock().wrote(frame.last);
            }
            Err(error) => {
                shared.counters.log.errors.add(1);
                if change.is_none() {
                    tracing::debug!(%error, "the index of the log is still not written");
                } else {
                    tracing::warn!(
                        %error,
                        remedy = "nothing has to be done unless it lasts: then check the disk of the \
                         log (`dmesg -T`)",
                        "cannot write the index of the log: recovery reads those segments in full"
                    );
                }
            }
        }
    }
}
