//! The copy of a volume that leaves: passes over what has changed, on the line to the other node.

use std::time::Duration;

use volume::{ChangedRegions, Extent, Lba, Stack};

use super::{
    Node,
    outgoing_move::{Leaving, Move},
};
use crate::{
    failure::Failure,
    moves::{self, Hears, MoveCopyPace, MoveFrame, MoveRequest, MoveResponse, Says},
};

/// The line to the other node.
pub(super) struct MoveOutChannel {
    pub(super) says: Says,
    pub(super) hears: Hears,
}

/// The most that is left when hosts are made to wait, a tenth of a second of a line of 1 Gbit/s, and the least: a
/// few changed blocks. In between it is what goes in a second.
const LITTLE_BYTES: u64 = 12 << 20;
const LEAST_BYTES: u64 = 512 << 10;
/// Passes before writes of hosts are slowed down, since the copy does not catch up.
const FREE_PASSES: u32 = 4;
/// The most that a write is slowed down.
const MOST_DELAY: Duration = Duration::from_millis(100);
/// Passes after which it never will.
const MOST_PASSES: u32 = 64;
/// Blocks whose allocation is asked for at once.
const ASK_BLOCKS: u64 = 1 << 21;

impl MoveOutChannel {
    /// Asks the other node to take it.
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
        let last = last.unwrap_or_else(|| "it tells of no address".into());
        Err(Failure::new(format!("the node {} cannot be reached: {last}", moved.to_node)).remedy(
            "see that it runs, and that nothing between refuses the port of its naming service",
        ))
    }

    /// Sends what has changed, again and again, until little is left.
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
            // Hosts write as fast as we copy, or faster.
            if pass >= FREE_PASSES && left > before / 2 {
                delay = (delay * 2).clamp(Duration::from_millis(1), MOST_DELAY);
                changes.slow_down(delay);
            }
        }
        let volume = &moved.described.volume;
        Err(Failure::new(format!("hosts write to {volume} faster than it can be copied"))
            .remedy("move it when they write less, or without --rate"))
    }

    /// Asks for something that is done or not.
    pub(super) async fn ask(&mut self, request: MoveRequest) -> Result<(), Failure> {
        match self.exchange(request).await? {
            MoveResponse::Done => Ok(()),
            _ => Err(broken(&"it gives an answer to another question")),
        }
    }

    /// Makes stable what was sent, and what is here: a disk that has lost what it took says so at a flush only,
    /// and the other node would never tell of it.
    pub(super) async fn flush(&mut self, volume: &Stack) -> Result<(), Failure> {
        let (here, there) = tokio::join!(volume.flush(), self.ask(MoveRequest::Flush));
        here.map_err(Failure::new)?;
        there
    }

    /// Asks for something with an answer of its own.
    pub(super) async fn exchange(&mut self, request: MoveRequest) -> Result<MoveResponse, Failure> {
        // Who refuses may have hung up: what it said comes first.
        let said = self.says.say(&MoveFrame::Request(request)).await;
        match self.hears.hear().await {
            Ok(MoveFrame::Answer(MoveResponse::Refused(failure))) => Err(failure),
            Ok(MoveFrame::Answer(answer)) => said.map(|()| answer).map_err(|lost| broken(&lost)),
            Ok(_) => Err(broken(&"it gives an answer to another question")),
            Err(lost) => Err(broken(&lost)),
        }
    }

    /// Sends what has changed, once.
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
            // It says why, if it can.
            Err(moves::MovePassError::Line(lost)) => match self.hears.hear().await {
                Ok(MoveFrame::Answer(MoveResponse::Refused(failure))) => Err(failure),
                _ => Err(broken(&lost)),
            },
            Err(error) => Err(Failure::new(error)),
        }
    }
}

/// Marks what takes space: the rest is zeros at both ends.
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

/// The line, or what was said on it, is not as it should be.
pub(super) fn broken(why: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("the other node: {why}"))
        .remedy("see that it runs, and look at its events; then move the volume again")
}
