//! The state of a move of a volume from this node to another one, and its cancellation.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ::names::{Gln, NodeName, VolumeName};
use config::{IscsiTargetSettings, Settings};
use control::{MoveStage, VolumeMoveProgress};
use parking_lot::Mutex;
use tokio::sync::Notify;
use volume::Watched;

use super::ServedUnit;
use crate::moves::{Described, MoveId};

/// The state of a volume's move from this node: the move in progress, or else the last one.
pub(super) struct Leaving {
    pub(super) id: MoveId,
    pub(super) begun: Instant,
    progress: Mutex<VolumeMoveProgress>,
    pub(super) cancel: Notify,
    /// True once the move cannot be cancelled any more: the outcome is decided, or the other node may own the volume.
    pub(super) is_decided: AtomicBool,
}

pub(super) struct Move {
    pub(super) settings: Arc<Settings>,
    pub(super) target: IscsiTargetSettings,
    pub(super) served: ServedUnit,
    pub(super) watched: Arc<Watched>,
    pub(super) described: Described,
    pub(super) to: Gln,
    pub(super) to_node: NodeName,
    pub(super) addresses: Vec<String>,
    /// Maximum rate of the copy in bytes per second; `None` for no limit.
    pub(super) pace: Option<u64>,
    /// Longest time for which hosts wait for the last pass.
    pub(super) pause: Duration,
}

impl Leaving {
    /// Creates the state of a move that is about to begin.
    pub(super) fn new(id: MoveId, volume: VolumeName, to: String, left_bytes: u64) -> Self {
        let progress = VolumeMoveProgress {
            volume,
            to,
            stage: MoveStage::Copying,
            copied_bytes: 0,
            left_bytes,
            rate: 0,
            seconds: 0.0,
            pause_seconds: None,
            failure: None,
        };
        Self {
            id,
            begun: Instant::now(),
            progress: Mutex::new(progress),
            cancel: Notify::new(),
            is_decided: AtomicBool::new(false),
        }
    }

    pub(super) fn progress(&self) -> VolumeMoveProgress {
        self.progress.lock().clone()
    }

    pub(super) fn under_way(&self) -> Option<&MoveId> {
        self.progress.lock().stage.is_under_way().then_some(&self.id)
    }

    /// Applies `change` to the progress of the move, and updates its duration and rate.
    pub(super) fn tell(&self, change: impl FnOnce(&mut VolumeMoveProgress)) {
        let mut progress = self.progress.lock();
        change(&mut progress);
        progress.seconds = self.begun.elapsed().as_secs_f64();
        progress.rate = (progress.copied_bytes as f64 / progress.seconds.max(0.001)) as u64;
    }
}

/// Waits until an operator cancels the move. Ignores a request that comes after the move is decided.
pub(super) async fn cancelled(leaving: &Leaving) {
    loop {
        leaving.cancel.notified().await;
        if !leaving.is_decided.load(Ordering::Acquire) {
            return;
        }
    }
}
