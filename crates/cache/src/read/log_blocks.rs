//! Reads data blocks of the log. A block whose checksum is wrong is repaired from another copy of the log,
//! and a sealed block is opened.

use bytes::Bytes;
use journal::checksum::crc32c;
use volume::{Data, Error, Extent, Lba};

use crate::{
    core::CacheCore,
    slots::{
        sectors::{SECTORS, SLOT_BYTES},
        table::{Came, LogAddress},
    },
    state::CacheState,
};

impl CacheCore {
    /// Keeps a block that was read from the log in memory, if there is room for it.
    pub(super) fn keep_logged(
        &self,
        state: &mut CacheState,
        slot: u64,
        place: LogAddress,
        block: &Data,
    ) {
        let Some(index) = state.table.find(slot) else { return };
        if state.table.page(index).is_some() || state.table.entry(index).pending() {
            return;
        }
        let Some(mut page) = self.take_page(state) else { return };
        block.copy_to_slice(&mut page);
        state.table.set_page(index, page.freeze(), place.mask, Came::Wanted);
    }

    /// Reads the content of a slot from the log. Returns `None` if `place` is no longer the address of the
    /// slot's newest logged content.
    pub async fn load(&self, slot: u64, place: LogAddress) -> Result<Option<Data>, Error> {
        let read = self.read_log(slot, &place).await;
        let state = self.state.lock();
        let current =
            state.table.find(slot).is_some_and(|i| state.table.entry(i).place == Some(place));
        if current { read.map(Some) } else { Ok(None) }
    }

    async fn read_log(&self, slot: u64, place: &LogAddress) -> Result<Data, Error> {
        let mut blocks = self.read_log_blocks(&[(slot, *place)]).await?;
        Ok(blocks.pop().expect("one was asked for"))
    }

    /// Reads the data blocks at places of the log and checks them. Adjacent blocks are read together.
    pub async fn read_log_blocks(&self, places: &[(u64, LogAddress)]) -> Result<Vec<Data>, Error> {
        let mut blocks = Vec::with_capacity(places.len());
        let mut at = 0;
        while at < places.len() {
            let first = places[at].1.block;
            let run = places[at..]
                .iter()
                .zip(0..MOST_LOGGED)
                .take_while(|((_, place), i)| place.block == first + i)
                .count();
            let extent = Extent { lba: Lba(u64::from(first)), blocks: run as u32 };
            let data = self.log.volume.read(extent).await;
            let data = data.ok().filter(|data| data.len() == run * SLOT_BYTES);
            for (i, &(slot, place)) in places[at..at + run].iter().enumerate() {
                let block = data.as_ref().map(|data| data.slice(i * SLOT_BYTES, SLOT_BYTES));
                let block = block.map(Data::into_bytes).filter(|b| crc32c(b) == place.checksum);
                let block = match block {
                    Some(block) => block.into(),
                    None => self.mend_log(slot, &place).await?,
                };
                blocks.push(self.open_logged(slot, &place, block)?);
            }
            at += run;
        }
        Ok(blocks)
    }

    /// Returns the content of a data block of the log. Opens the block first if the log is encrypted.
    fn open_logged(&self, slot: u64, place: &LogAddress, block: Data) -> Result<Data, Error> {
        let Some(seals) = &self.log.seals else { return Ok(block) };
        match seals.open(slot, place, &block.into_bytes()) {
            Some(opened) => Ok(Bytes::from(opened as Box<[u8]>).into()),
            None => {
                let error = Error::Device("its data cannot be decrypted with the key".into());
                Err(self.log_error(slot, error))
            }
        }
    }

    /// Reads a data block from another copy of the log, if there is one, after its first copy could not be
    /// read or had a wrong checksum. Repairs the bad copy.
    async fn mend_log(&self, slot: u64, place: &LogAddress) -> Result<Data, Error> {
        match self.log.examine(place).await {
            Ok(Some(block)) => {
                self.counters.log.mended.add(1);
                Ok(block)
            }
            Ok(None) => {
                let error = Error::Device("the data on the log disk has a wrong checksum".into());
                Err(self.log_error(slot, error))
            }
            Err(error) => Err(self.log_error(slot, error)),
        }
    }

    /// Returns an error of the log disk as an error of the blocks of the cached volume.
    fn log_error(&self, slot: u64, error: Error) -> Error {
        let blocks = (u64::from(SECTORS) / self.lower.sectors_per_block()) as u32;
        Error::Medium {
            extent: Extent { lba: self.lower.lba(slot * u64::from(SECTORS)), blocks },
            reason: format!("log disk: {error}").into(),
        }
    }
}

/// The maximum number of blocks in one read of the log: 1 MiB.
const MOST_LOGGED: u32 = 256;
