//! The working set: blocks that tell what belongs in them, behind a mark that says that they are there, so that
//! several runs on one storage fill it once.

use std::io::ErrorKind;

use sim::Rng;

use super::{
    block_store::{Aligned, MicroStore},
    sector_pattern::{self, ExpectedSectorVersion, SECTOR},
};
use crate::Error;

/// Where the blocks begin: the largest block, so that blocks of all sizes lie on multiples of theirs.
const START: u64 = 64 * 1024;
/// The mark, at the beginning: as much as the largest block of a disk.
const MARK: usize = 4096;
/// "FBMICRO1".
const MAGIC: u64 = u64::from_le_bytes(*b"FBMICRO1");
/// Bytes of one write while it is filled: enough for a kernel or initiator to have many on their way.
const PIECE: usize = 4 << 20;

/// Blocks that are there.
pub(super) struct Set<'a> {
    store: &'a MicroStore,
    /// Of what is in them; that of the run that filled it.
    seed: u64,
    bytes: u64,
    /// Runs that have written to it since.
    runs: u32,
}

impl<'a> Set<'a> {
    /// The bytes that a set of so many takes.
    pub(super) const fn takes(bytes: u64) -> u64 {
        START + bytes
    }

    /// That a file has nothing in it, or a set, whole or not: any other is not ours to fill.
    ///
    /// # Errors
    /// [`Error::Settings`]; nothing was touched.
    pub(super) fn refuse_others(store: &MicroStore) -> Result<(), Error> {
        if store.is_empty()? || mark_on(store)?.is_some() {
            return Ok(());
        }
        Err(Error::Settings(format!(
            "{} is no working set of this workload; nothing was touched",
            store.name()
        )))
    }

    /// The set that is on a store, if it is large enough; otherwise it is filled anew.
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

    /// Filled with version 0.
    fn filled(self, progress: &dyn Fn(f64)) -> Result<Self, Error> {
        // Marked as one with nothing in it until it is whole, whatever stood there.
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

    /// Notes one more run that writes; its number.
    pub(super) fn begin_writing(&mut self) -> Result<u32, Error> {
        let mut mark = Aligned::zeros(MARK);
        self.store.read(0, &mut mark)?;
        let had = read_mark(&mark).map_or(self.bytes, |[_, bytes, _]| bytes);
        self.runs += 1;
        self.mark(had)?;
        Ok(self.runs)
    }

    /// Reads a block.
    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        self.store.read(START + at, into)
    }

    /// What a block is to hold as of this write.
    pub(super) fn content(&self, at: u64, version: u64, into: &mut [u8]) {
        sector_pattern::fill(into, number(at), self.seed, version);
    }

    /// Writes a block.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.store.write(START + at, bytes)
    }

    /// That a block holds this version; without one, any that was written so far.
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

/// The version of a write in a run: later runs have higher ones.
pub(super) fn version_of(run: u32, write: u32) -> u64 {
    u64::from(run) << 32 | u64::from(write)
}

fn number(at: u64) -> u64 {
    at / SECTOR as u64
}

/// The mark of a store, if it has one.
fn mark_on(store: &MicroStore) -> Result<Option<[u64; 3]>, Error> {
    let mut mark = Aligned::zeros(MARK);
    match store.read(0, &mut mark) {
        Ok(()) => Ok(read_mark(&mark)),
        // A new file ends before its mark.
        Err(Error::System { error, .. }) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Seed, bytes and runs of a mark, if it is one.
fn read_mark(mark: &[u8]) -> Option<[u64; 3]> {
    let mut words =
        mark.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight")));
    let words: [u64; 5] = std::array::from_fn(|_| words.next().expect("it is long enough"));
    let [magic, seed, bytes, runs, summed] = words;
    (magic == MAGIC && summed == sum(&words[..4])).then_some([seed, bytes, runs])
}

/// Against a mark of which a part was written: no more is needed, and nobody gains by a false one.
fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| Rng::new(sum ^ word).next_u64())
}
