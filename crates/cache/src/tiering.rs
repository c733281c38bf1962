//! Uses the disk of the read tier: opens it, reads from it, and writes segments that are full.

use std::{ops::Range, sync::Arc, time::Duration};

use journal::{identity::InstanceId, seal::Sealer};
use tokio::time::timeout;
use volume::{Data, Durability, Error, Extent, Lba, Stack};

use crate::{
    core::CacheCore,
    fetch::SlotFetch,
    slots::{pages::scratch_block, sectors::SLOT_BYTES},
    tier::{
        FIRST_BLOCK, LEAST_BLOCKS, TierDisk,
        label::{NoLabel, TierLabel},
    },
};

/// The reason why a disk cannot be the read tier. The disk is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// The disk holds blocks in clear, although the log is encrypted.
    #[error("it holds blocks in clear, and the log is encrypted")]
    Clear,
    /// There is no memory for the index, or the system has no random bytes for a key.
    #[error("{0}")]
    Means(String),
    #[error("it holds other data than a read tier")]
    NotATier,
    #[error("it belongs to log {0}")]
    OtherLog(InstanceId),
    #[error("a read tier has blocks of 4096 bytes, at least {LEAST_BLOCKS} of them")]
    Size,
    #[error("its format is version {0}, and this program knows version 1")]
    Version(u32),
}

/// Checks that a disk can be the read tier of `log`, or of a log that does not exist yet. Changes nothing.
pub async fn inspect_tier(
    volume: &Stack,
    log: Option<InstanceId>,
    is_sealed: bool,
) -> Result<(), TierError> {
    let unreadable = |error: Error| TierError::Means(error.to_string());
    let begin = first_blocks(volume).await?.map_err(unreadable)?;
    admit(&begin, log, is_sealed)
}

/// Reads the blocks before the segments, after a check of the disk's size.
async fn first_blocks(volume: &Stack) -> Result<Result<Data, Error>, TierError> {
    let geometry = volume.geometry();
    if geometry.block_size as usize != SLOT_BYTES || geometry.blocks < LEAST_BLOCKS {
        return Err(TierError::Size);
    }
    Ok(volume.read(Extent { lba: Lba(0), blocks: FIRST_BLOCK as u32 }).await)
}

/// Checks the first blocks of a disk. If no log exists yet, the blocks must be blank.
fn admit(begin: &Data, log: Option<InstanceId>, is_sealed: bool) -> Result<(), TierError> {
    match TierLabel::decode(&begin.clone().into_bytes()) {
        Err(NoLabel::Blank) => Ok(()),
        Err(NoLabel::Other) => Err(TierError::NotATier),
        Err(NoLabel::Version(version)) => Err(TierError::Version(version)),
        Ok(found) if Some(found.instance) != log => Err(TierError::OtherLog(found.instance)),
        Ok(found) if is_sealed && !found.is_sealed => Err(TierError::Clear),
        Ok(_) => Ok(()),
    }
}

impl CacheCore {
    /// Begins to use a disk as the read tier; see [`crate::Cache::use_tier`].
    pub async fn use_tier(&self, volume: Stack) -> Result<(), TierError> {
        let begin = match first_blocks(&volume).await? {
            Ok(begin) => begin,
            Err(error) => {
                self.end_tier(error);
                return Ok(());
            }
        };
        let instance = self.log.identity.instance;
        let label = TierLabel { instance, is_sealed: self.settings.log_key.is_some() };
        admit(&begin, Some(instance), label.is_sealed)?;
        let means = |error: &dyn std::fmt::Display| TierError::Means(error.to_string());
        let sealer = label.is_sealed.then(Sealer::drawn).transpose();
        let sealer = sealer.map_err(|error| means(&error))?;
        let block = scratch_block(&self.log.scratch, |block| label.encode(block));
        if let Err(error) = volume.write(Lba(0), block.into(), Durability::Stable).await {
            self.end_tier(error);
            return Ok(());
        }
        let disk = TierDisk::new(volume, sealer).map_err(|error| means(&error))?;
        self.state.lock().tier.begin(disk);
        Ok(())
    }

    /// Reads the data of a fetch from the tier. Returns `None` if any of its slots is not there or is
    /// corrupt.
    pub async fn read_tier(&self, fetch: &SlotFetch) -> Option<Data> {
        let stretch = fetch.tier.as_ref()?;
        let late = || Err(Error::Device("it does not answer".into()));
        match timeout(PATIENCE, stretch.read()).await.unwrap_or_else(|_| late()) {
            Ok(blocks) => self.state.lock().tier.judge(stretch, blocks),
            Err(error) => {
                self.end_tier(error);
                None
            }
        }
    }

    /// Removes slots from the index of the tier, in short steps.
    pub async fn void_tier(&self, slots: Range<u64>) {
        let mut done = 0;
        while self.state.lock().tier.void_some(&slots, &mut done) {
            tokio::task::yield_now().await;
        }
    }

    /// Switches the tier off after an error of its disk. The cache continues without it.
    pub fn end_tier(&self, error: Error) {
        let ended = self.state.lock().tier.fail(&error);
        if ended.is_some() {
            tracing::error!(
                %error,
                remedy = "check the disk of `read_tier`, and restart this process; reads and writes \
                 continue without it",
                "the read tier is switched off until the next start"
            );
        }
    }
}

/// Writes full segments to the tier's disk, one at a time, until the cache is dropped.
pub(crate) async fn run(shared: Arc<CacheCore>) {
    let wake = Arc::clone(&shared.state.lock().tier.wake);
    loop {
        let next = shared.state.lock().tier.next_full();
        let Some((disk, full)) = next else {
            wake.notified().await;
            continue;
        };
        match disk.write(&full).await {
            Ok(written) => shared.state.lock().tier.note_written(&written),
            Err(error) => shared.end_tier(error),
        }
    }
}

/// If the local disk has not answered for this long, it counts as failed, and hosts do not wait for it any
/// longer.
const PATIENCE: Duration = Duration::from_secs(2);
