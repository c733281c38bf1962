//! One pass over a volume in use: it reads and sends the blocks that have changed since they were sent last.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::time::Instant;
use volume::{ChangedRegions, Data, Error, Extent, Lba, Stack};

use super::{
    channel::{MoveChannelError, Says},
    message::MoveFrame,
};

/// Number of bytes that are read and sent at once.
const PIECE_BYTES: u64 = 256 << 10;
/// Number of pieces that are read ahead of the channel: 2 MiB.
const AHEAD: usize = 8;

/// Limits the rate at which a volume is copied to another node.
#[derive(Clone, Copy, Debug)]
pub struct MoveCopyPace {
    begun: Instant,
    sent: u64,
    /// Maximum rate of the copy in bytes per second; `None` for no limit.
    rate: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum MovePassError {
    #[error("the volume cannot be read: {0}")]
    Volume(#[from] Error),
    #[error("the connection to the other node: {0}")]
    Line(#[from] MoveChannelError),
}

impl MoveCopyPace {
    /// From now on, limits the copy to `rate` bytes per second.
    pub fn new(rate: Option<u64>) -> Self {
        Self { begun: Instant::now(), sent: 0, rate }
    }

    async fn keep(&mut self, bytes: u64) {
        self.sent += bytes;
        if let Some(rate) = self.rate {
            let due = Duration::from_secs_f64(self.sent as f64 / rate as f64);
            tokio::time::sleep_until(self.begun + due).await;
        }
    }
}

/// Sends all changed blocks, and calls `sent` for each piece with its length in bytes.
pub async fn pass(
    volume: &Stack,
    changes: &ChangedRegions,
    says: &mut Says,
    pace: &mut MoveCopyPace,
    mut sent: impl FnMut(u64),
) -> Result<(), MovePassError> {
    let block_size = u64::from(volume.geometry().block_size);
    let pieces = stream::iter(std::iter::from_fn({
        let mut from = Lba(0);
        move || {
            let extent = changes.take(from, PIECE_BYTES)?;
            from = extent.end();
            Some(extent)
        }
    }));
    // Order: `take` clears the mark of a piece before it is read, so that blocks that change later are marked
    // again.
    let mut read = pieces.map(|extent| read(volume, extent)).buffered(AHEAD);
    while let Some(piece) = read.next().await {
        let (extent, data) = piece?;
        let bytes = u64::from(extent.blocks) * block_size;
        let lba = extent.lba.0;
        if is_zero(&data) {
            says.say(&MoveFrame::Zeros { lba, blocks: extent.blocks }).await?;
        } else {
            says.say(&MoveFrame::Write { lba, data: whole(data) }).await?;
            pace.keep(bytes).await;
        }
        sent(bytes);
    }
    Ok(())
}

async fn read(volume: &Stack, extent: Extent) -> Result<(Extent, Data), Error> {
    Ok((extent, volume.read(extent).await?))
}

fn whole(data: Data) -> Bytes {
    data.into_bytes()
}

fn is_zero(data: &Data) -> bool {
    let any = |bytes: &[u8]| bytes.iter().fold(0, |any, byte| any | byte);
    data.parts().iter().all(|bytes| bytes.chunks(4096).all(|part| any(part) == 0))
}
