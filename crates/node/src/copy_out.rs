//! The outgoing copy of a volume: passes that send the changed blocks to the destination node.

use std::time::Duration;

use control::Failure;
use volume::{ChangedRegions, Extent, Lba, Stack};

use super::{
    Node,
    outgoing_move::{Leaving, Move},
};
use crate::moves::{self, Hears, MoveCopyPace, MoveFrame, MoveRequest, MoveResponse, Says};

pub(super) struct MoveOutChannel {
    pub(super) says: Says,
    pub(super) hears: Hears,
}

/// Bounds of the number of bytes that may be left to copy when hosts are made to wait. At most `LITTLE_BYTES`, which 1
/// Gbit/s carries in a tenth of a second; at least `LEAST_BYTES`, which is a few changed blocks. In between, the number
/// of bytes that the copy sends in one second.
const LITTLE_BYTES: u64 = 12 << 20;
const LEAST_BYTES: u64 = 512 << 10;
/// Number of passes after which writes of hosts are slowed down, because the copy does not catch up.
const FREE_PASSES: u32 = 4;
/// The longest time for which a write of a host is delayed, so that the copy can catch up.
const MOST_DELAY: Duration = Duration::from_millis(100);
/// Number of passes after which the move fails.
const MOST_PASSES: u32 = 64;
/// Number of blocks whose allocation is requested at once.
const ASK_BLOCKS: u64 = 1 << 21;

impl MoveOutChannel {
    /// Connects to the destination node of a move, and asks it to accept the volume.
    pub(super) async fn agree(
        node: &Node,
        leaving: &Leaving,
        moved: &Move,
    ) -> Result<Self, Failure> {
        let naming = node.naming()?;
        let mut last = None;
        for address in &moved.addresses {
            match moves::call(naming.secret(), address).await {
                Ok((says, hears)) => {
                    let mut line = Self { says, hears };
                    let begin = MoveRequest::Begin {
                        to: moved.to,
                        from: naming.gln(),
                        from_node: naming.node(),
                        id: leaving.id.clone(),
                        volume: Box::new(moved.described.clone()),
                    };
                    line.ask(begin).await?;
                    return Ok(line);
                }
                Err(error) => last = Some(format!("{address}: {error}")),
            }
        }
        let last = last.unwrap_or_else(|| "it announces no address".into());
        Err(Failure::new(format!("the node {} cannot be reached: {last}", moved.to_node)).remedy(
            "check that it is running, and that no firewall blocks the port of its naming service",
        ))
    }

    /// Sends the changed blocks in passes, until so few bytes are left that hosts can wait for them.
    pub(super) async fn catch_up(
        &mut self,
        leaving: &Leaving,
        moved: &Move,
        changes: &ChangedRegions,
        pace: &mut MoveCopyPace,
    ) -> Result<(), Failure> {
        let mut delay = Duration::ZERO;
        for pass in 0..MOST_PASSES {
            let before = changes.bytes();
            self.pass(moved.watched.below(), changes, pace, leaving).await?;
            self.flush(moved.watched.below()).await?;
            let left = changes.bytes();
            leaving.tell(|progress| progress.left_bytes = left);
            let rate = leaving.progress().rate.min(moved.pace.unwrap_or(u64::MAX));
            if left <= rate.clamp(LEAST_BYTES, LITTLE_BYTES) {
                return Ok(());
            }
            // Slow down the writes of hosts: they write nearly as fast as the volume is copied, or faster.
            if pass >= FREE_PASSES && left > before / 2 {
                delay = (delay * 2).clamp(Duration::from_millis(1), MOST_DELAY);
                changes.slow_down(delay);
            }
        }
        let volume = &moved.described.volume;
        Err(Failure::new(format!("hosts write to {volume} faster than it can be copied"))
            .remedy("move it when they write less, or without --rate"))
    }

    /// Sends a request whose answer is `Done` or a refusal.
    pub(super) async fn ask(&mut self, request: MoveRequest) -> Result<(), Failure> {
        match self.exchange(request).await? {
            MoveResponse::Done => Ok(()),
            _ => Err(broken(&"it sent an unexpected answer")),
        }
    }

    /// Makes the sent blocks stable at the destination, and flushes the volume here. A disk here that has lost
    /// acknowledged writes reports the loss only at a flush, and the destination cannot detect it later.
    pub(super) async fn flush(&mut self, volume: &Stack) -> Result<(), Failure> {
        let (here, there) = tokio::join!(volume.flush(), self.ask(MoveRequest::Flush));
        here.map_err(Failure::new)?;
        there
    }

    pub(super) async fn exchange(&mut self, request: MoveRequest) -> Result<MoveResponse, Failure> {
        // Read the answer even if the request cannot be sent: a node that refuses the move may have answered and closed
        // the connection already.
        let said = self.says.say(&MoveFrame::Request(request)).await;
        match self.hears.hear().await {
            Ok(MoveFrame::Answer(MoveResponse::Refused(failure))) => Err(failure),
            Ok(MoveFrame::Answer(answer)) => said.map(|()| answer).map_err(|lost| broken(&lost)),
            Ok(_) => Err(broken(&"it sent an unexpected answer")),
            Err(lost) => Err(broken(&lost)),
        }
    }

    /// Sends all blocks that have changed since the previous pass of the copy.
    pub(super) async fn pass(
        &mut self,
        volume: &Stack,
        changes: &ChangedRegions,
        pace: &mut MoveCopyPace,
        leaving: &Leaving,
    ) -> Result<(), Failure> {
        let sent = |bytes| {
            leaving.tell(|progress| {
                progress.copied_bytes += bytes;
                progress.left_bytes = progress.left_bytes.saturating_sub(bytes);
            });
        };
        let passed = moves::pass(volume, changes, &mut self.says, pace, sent).await;
        match passed {
            Ok(()) => Ok(()),
            // Read the reason of the failure, which the other node may have sent before it closed the connection.
            Err(moves::MovePassError::Line(lost)) => match self.hears.hear().await {
                Ok(MoveFrame::Answer(MoveResponse::Refused(failure))) => Err(failure),
                _ => Err(broken(&lost)),
            },
            Err(error) => Err(Failure::new(error)),
        }
    }
}

/// Marks the allocated blocks as changed, so that they are copied. The other blocks need no copy: they are zeros at
/// both nodes.
pub(super) async fn mark_used(volume: &Stack, changes: &ChangedRegions) -> Result<(), Failure> {
    let blocks = volume.geometry().blocks;
    let mut at = 0;
    while at < blocks {
        let extent = Extent { lba: Lba(at), blocks: (blocks - at).min(ASK_BLOCKS) as u32 };
        let allocation = volume.extensions().allocation(extent).await.map_err(Failure::new)?;
        for run in allocation.runs() {
            if run.mapped {
                changes.mark(at..at + u64::from(run.blocks));
            }
            at += u64::from(run.blocks);
        }
        if allocation.blocks() == 0 {
            changes.mark(at..extent.end().0);
            at = extent.end().0;
        }
    }
    Ok(())
}

/// Returns the failure for an error of the channel, or for an unexpected answer.
pub(super) fn broken(why: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("the other node: {why}"))
        .remedy("check that it is running, and its events; then move the volume again")
}
