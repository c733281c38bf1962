//! The working set: blocks with verifiable content, after a label that describes the set. Later runs on the same
//! storage recognize the set by its label, and need not fill it again.

use std::io::ErrorKind;

use sim::Rng;

use super::{
    block_store::{Aligned, MicroStore},
    sector_pattern::{self, ExpectedSectorVersion, SECTOR},
};
use crate::Error;

/// The offset of the first block in bytes. Equal to the largest block size, so that blocks of all sizes are aligned.
const START: u64 = 64 * 1024;
/// Length of the label at the start of the storage: the largest block size of a disk.
const MARK: usize = 4096;
/// The number at the start of a label: the characters "FBMICRO1".
const MAGIC: u64 = u64::from_le_bytes(*b"FBMICRO1");
/// Length of one write while the set is filled. It is large, so that a kernel or initiator has many requests in flight.
const PIECE: usize = 4 << 20;

pub(super) struct Set<'a> {
    store: &'a MicroStore,
    /// The seed of the content, chosen by the run that filled the set.
    seed: u64,
    bytes: u64,
    /// Number of runs that have written to the blocks since they were filled.
    runs: u32,
}

impl<'a> Set<'a> {
    /// Returns how many bytes of the storage a working set with `bytes` bytes of blocks takes, including its label.
    pub(super) const fn takes(bytes: u64) -> u64 {
        START + bytes
    }

    /// Checks that a file is empty or has a working set, complete or not. A workload must not overwrite any other file.
    ///
    /// # Errors
    /// [`Error::Settings`]; the file is unchanged.
    pub(super) fn refuse_others(store: &MicroStore) -> Result<(), Error> {
        if store.is_empty()? || mark_on(store)?.is_some() {
            return Ok(());
        }
        Err(Error::Settings(format!(
            "{} is no working set of this workload; nothing was changed",
            store.name()
        )))
    }

    /// Returns the working set that is on the storage, if it has at least `bytes` bytes; otherwise fills a new one.
    pub(super) fn open(
        store: &'a MicroStore,
        bytes: u64,
        seed: u64,
        progress: &dyn Fn(f64),
    ) -> Result<Self, Error> {
        match mark_on(store)? {
            Some([seed, had, runs]) if had >= bytes && runs < u64::from(u32::MAX) => {
                Ok(Self { store, seed, bytes, runs: runs as u32 })
            }
            _ => Self { store, seed, bytes, runs: 0 }.filled(progress),
        }
    }

    /// Fills the set: writes version 0 of each block.
    fn filled(self, progress: &dyn Fn(f64)) -> Result<Self, Error> {
        // Until the set is complete, its label says that the set is empty. Otherwise an interrupted run could leave an
        // old label with new content.
        self.mark(0)?;
        let mut piece = Aligned::zeros(PIECE);
        for at in (0..self.bytes).step_by(PIECE) {
            let length = (self.bytes - at).min(PIECE as u64) as usize;
            sector_pattern::fill(&mut piece[..length], number(at), self.seed, 0);
            self.store.write(START + at, &piece[..length])?;
            progress(at as f64 / self.bytes as f64);
        }
        self.store.flush()?;
        self.mark(self.bytes)?;
        Ok(self)
    }

    /// Counts one more run that writes, and stores the label. Returns the number of the run.
    pub(super) fn begin_writing(&mut self) -> Result<u32, Error> {
        let mut mark = Aligned::zeros(MARK);
        self.store.read(0, &mut mark)?;
        let had = read_mark(&mark).map_or(self.bytes, |[_, bytes, _]| bytes);
        self.runs += 1;
        self.mark(had)?;
        Ok(self.runs)
    }

    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        self.store.read(START + at, into)
    }

    /// Fills `into` with the data that the block at byte offset `at` has in this version.
    pub(super) fn content(&self, at: u64, version: u64, into: &mut [u8]) {
        sector_pattern::fill(into, number(at), self.seed, version);
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.store.write(START + at, bytes)
    }

    /// Checks that a block has this version. If `version` is `None`, the block may have any version that was written so
    /// far.
    ///
    /// # Errors
    /// [`Error::Wrong`].
    pub(super) fn check(&self, at: u64, bytes: &[u8], version: Option<u64>) -> Result<(), Error> {
        let last = version_of(self.runs, u32::MAX);
        let expected =
            version.map_or(ExpectedSectorVersion::UpTo(last), ExpectedSectorVersion::Exactly);
        let checked = sector_pattern::check(bytes, number(at), self.seed, expected);
        checked.map_err(|what| Error::Wrong(format!("in the working set, {what}")))
    }

    fn mark(&self, bytes: u64) -> Result<(), Error> {
        let mut mark = Aligned::zeros(MARK);
        let words = [MAGIC, self.seed, bytes, self.runs.into()];
        let all = words.into_iter().chain([sum(&words)]);
        for (word, into) in all.zip(mark.chunks_exact_mut(8)) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        self.store.write(0, &mark)?;
        self.store.flush()
    }
}

/// Returns the version of the data that write number `write` of run number `run` gives to a block. A later run gives
/// only higher versions.
pub(super) fn version_of(run: u32, write: u32) -> u64 {
    u64::from(run) << 32 | u64::from(write)
}

fn number(at: u64) -> u64 {
    at / SECTOR as u64
}

/// Reads the label at the start of a store. Returns `None` if there is no valid label.
fn mark_on(store: &MicroStore) -> Result<Option<[u64; 3]>, Error> {
    let mut mark = Aligned::zeros(MARK);
    match store.read(0, &mut mark) {
        Ok(()) => Ok(read_mark(&mark)),
        // A new file is shorter than a label.
        Err(Error::System { error, .. }) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Decodes a label: seed, size and number of runs. Returns `None` if it is not valid.
fn read_mark(mark: &[u8]) -> Option<[u64; 3]> {
    let mut words =
        mark.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight")));
    let words: [u64; 5] = std::array::from_fn(|_| words.next().expect("it is long enough"));
    let [magic, seed, bytes, runs, summed] = words;
    (magic == MAGIC && summed == sum(&words[..4])).then_some([seed, bytes, runs])
}

/// Returns a checksum that detects a torn label. It need not resist forgery, since a forged label
/// gains nothing.
fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| Rng::new(sum ^ word).next_u64())
}
