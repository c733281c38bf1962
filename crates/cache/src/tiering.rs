//! The read tier at work: its disk taken into use, read, and written when a segment is full.

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

/// Why a disk is not taken for a read tier. Nothing was written to it.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// What it held before is in clear, and the log is encrypted.
    #[error("it holds blocks in clear, and the log is encrypted")]
    Clear,
    /// There is no memory for its index, or nothing to draw a key from.
    #[error("{0}")]
    Means(String),
    /// It holds something else.
    #[error("it holds something that is no read tier")]
    NotATier,
    /// It is that of another log.
    #[error("it is of the log {0}")]
    OtherLog(InstanceId),
    /// Its blocks are of another size, or too few.
    #[error("a read tier has blocks of 4096 bytes, at least {LEAST_BLOCKS} of them")]
    Size,
    /// It was used by a newer program.
    #[error("its format is version {0}, and this program knows version 1")]
    Version(u32),
}

/// Whether a disk can be the read tier of a log, or of one that is still to be made. Changes nothing.
pub async fn inspect_tier(
    volume: &Stack,
    log: Option<InstanceId>,
    is_sealed: bool,
) -> Result<(), TierError> {
    let unreadable = |error: Error| TierError::Means(error.to_string());
    let begin = first_blocks(volume).await?.map_err(unreadable)?;
    admit(&begin, log, is_sealed)
}

/// What a disk of the right size begins with, if it can be read.
async fn first_blocks(volume: &Stack) -> Result<Result<Data, Error>, TierError> {
    let geometry = volume.geometry();
    if geometry.block_size as usize != SLOT_BYTES || geometry.blocks < LEAST_BLOCKS {
        return Err(TierError::Size);
    }
    Ok(volume.read(Extent { lba: Lba(0), blocks: FIRST_BLOCK as u32 }).await)
}

/// Whether what begins like this can be the tier of a log; of none only if it is blank.
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
    /// See [`crate::Cache::use_tier`].
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

    /// What a fetch is for, if the tier has all of it, whole and unchanged.
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

    /// Forgets what the tier has of some slots, in short steps.
    pub async fn void_tier(&self, slots: Range<u64>) {
        let mut done = 0;
        while self.state.lock().tier.void_some(&slots, &mut done) {
            tokio::task::yield_now().await;
        }
    }

    /// Its disk has failed: the cache goes on without it.
    pub fn end_tier(&self, error: Error) {
        let ended = self.state.lock().tier.fail(&error);
        if ended.is_some() {
            tracing::error!(%error, "the read tier is switched off until the next start");
        }
    }
}

/// Writes segments to the tier's disk, one at a time, for as long as the cache lives.
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

/// A local disk that says nothing for so long has failed; hosts wait no longer for it.
const PATIENCE: Duration = Duration::from_secs(2);
