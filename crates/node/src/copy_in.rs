//! The copy of a volume that another node is moving to this one: its file, and the records of its unit.

use std::sync::Arc;

use control::Failure;
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use volume::{Data, Durability, Error, Extent, FileVolume, Lba, Volume};

use crate::moves::MoveChannelError;

/// Maximum number of concurrent writes to the copy of a volume that arrives.
const WRITES: usize = 8;
/// Bytes that are written without a flush: a slow disk can flush as much within the time-out of the source node.
const MOST_UNFLUSHED: u64 = 256 << 20;
/// Maximum length of all records of a unit, in bytes.
const MOST_RECORDS: usize = 4 << 20;

/// The copy of a volume that this node receives: its file, the writes in progress, and the records of the unit.
pub(super) struct Copy {
    pub(super) file: Arc<FileVolume>,
    pub(super) writes: FuturesUnordered<BoxFuture<'static, Result<(), Error>>>,
    pub(super) records: Vec<(String, Vec<u8>)>,
    /// Bytes written since the last flush.
    pub(super) unflushed: u64,
}

impl Copy {
    /// Writes blocks. The blocks of one pass do not overlap, and there is a flush between two passes.
    pub(super) async fn write(&mut self, lba: u64, data: Data) -> Result<(), Failure> {
        self.file.geometry().check_write(Lba(lba), data.len()).map_err(Failure::new)?;
        if data.is_empty() {
            return Err(Failure::new(MoveChannelError::Payload));
        }
        self.unflushed += data.len() as u64;
        if self.unflushed > MOST_UNFLUSHED {
            self.flush().await?;
        }
        let file = Arc::clone(&self.file);
        let write = async move { file.write(Lba(lba), data, Durability::Volatile).await };
        self.begin(Box::pin(write)).await
    }

    pub(super) async fn discard(&mut self, lba: u64, blocks: u32) -> Result<(), Failure> {
        let extent = Extent { lba: Lba(lba), blocks };
        self.file.geometry().check_discard(extent).map_err(Failure::new)?;
        let file = Arc::clone(&self.file);
        self.begin(Box::pin(async move { file.discard(extent).await })).await
    }

    async fn begin(&mut self, write: BoxFuture<'static, Result<(), Error>>) -> Result<(), Failure> {
        self.writes.push(write);
        while self.writes.len() >= WRITES {
            self.one_ends().await?;
        }
        Ok(())
    }

    async fn one_ends(&mut self) -> Result<(), Failure> {
        match self.writes.next().await {
            Some(Err(error)) => Err(Failure::new(format!("the copy cannot be written: {error}"))
                .remedy("check the disk of `folder` in [accept]")),
            Some(Ok(())) | None => Ok(()),
        }
    }

    pub(super) async fn flush(&mut self) -> Result<(), Failure> {
        while !self.writes.is_empty() {
            self.one_ends().await?;
        }
        self.unflushed = 0;
        self.file.flush().await.map_err(Failure::new)
    }

    /// Adds a record of the unit's state, such as its reservations, to the copy that arrives.
    pub(super) fn keep(&mut self, name: String, bytes: Vec<u8>) -> Result<(), Failure> {
        let kinds = unit::UnitRecordKind::ALL;
        let refusal = |reason: String| {
            Err(Failure::new(reason).remedy("use the same version of forebay on both nodes"))
        };
        if !kinds.iter().any(|record| record.name() == name) {
            return refusal(format!("the unit has state of an unknown kind ({name})"));
        }
        if self.records.len() >= kinds.len() {
            return refusal(format!(
                "the other node sent more than {} records of the unit's state",
                kinds.len()
            ));
        }
        let kept: usize = self.records.iter().map(|(_, bytes)| bytes.len()).sum();
        let sum = kept + bytes.len();
        if sum > MOST_RECORDS {
            return refusal(format!(
                "the unit's state has {sum} bytes with the record {name}, more than {MOST_RECORDS}"
            ));
        }
        self.records.push((name, bytes));
        Ok(())
    }
}
