//! Files of known content, for a workload whose program does not verify its own reads. The workload writes these files
//! next to the program's before the program runs. Afterwards it reads them from the storage, bypassing the page cache,
//! and compares them.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
};

use rustix::fs::{Advice, fadvise};
use sim::Rng;

use crate::{Error, owned_folder::OwnedFolder};

/// Sizes of the files in bytes: around a page, across pages, and some that take many requests.
const SIZES: [usize; 6] = [1, 4095, 4096, 65_537, 1 << 20, 3 << 20];

/// Files of known content that exist while the program runs. Dropping the value removes them.
pub(crate) struct WitnessFiles {
    folder: OwnedFolder,
    seed: u64,
}

impl WitnessFiles {
    /// Space in bytes that the witness files take, including the overhead of file systems.
    pub(crate) const SPACE: u64 = 5 << 20;
    /// A text for the report that says which data was compared.
    pub(crate) const VERIFIED: &'static str =
        "4 MiB in other files, written before the run and read from storage after it";

    /// Writes the witness files below `folder`, and makes them stable.
    pub(crate) fn write(folder: &Path, seed: u64) -> Result<Self, Error> {
        let witness =
            Self { folder: OwnedFolder::make(folder, "forebay-lab-witness", Self::SPACE)?, seed };
        for (number, size) in SIZES.into_iter().enumerate() {
            let path = witness.path(number);
            let write = || -> io::Result<()> {
                let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
                file.write_all(&witness.content(number, size))?;
                file.sync_all()
            };
            write().map_err(Error::system(format!("write {}", path.display())))?;
        }
        let sync = File::open(witness.folder.path()).and_then(|folder| folder.sync_all());
        sync.map_err(Error::system("sync the folder of files to compare"))?;
        Ok(witness)
    }

    /// Reads the files from the storage and compares them.
    ///
    /// # Errors
    /// [`Error::Wrong`], with the file and the offset of the first wrong byte.
    pub(crate) fn compare(&self) -> Result<(), Error> {
        for (number, size) in SIZES.into_iter().enumerate() {
            let path = self.path(number);
            let read = || -> io::Result<Vec<u8>> {
                let mut file = File::open(&path)?;
                // This call drops clean pages only. All pages of the file are clean, since it was
                // synced.
                fadvise(&file, 0, None, Advice::DontNeed)?;
                let mut bytes = Vec::with_capacity(size);
                file.read_to_end(&mut bytes)?;
                Ok(bytes)
            };
            let found = read().map_err(Error::system(format!("read {}", path.display())))?;
            let written = self.content(number, size);
            if found.len() != written.len() {
                let (had, has) = (written.len(), found.len());
                let what = format!("{} had {had} bytes and has {has}", path.display());
                return Err(Error::Wrong(what));
            }
            if let Some(at) = (0..size).find(|&at| found[at] != written[at]) {
                let what = format!(
                    "{} differs from the data that was written, from byte {at} on",
                    path.display()
                );
                return Err(Error::Wrong(what));
            }
        }
        Ok(())
    }

    fn path(&self, number: usize) -> std::path::PathBuf {
        self.folder.path().join(number.to_string())
    }

    fn content(&self, number: usize, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        Rng::new(self.seed.wrapping_add(number as u64)).fill(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_changed_byte_and_a_truncated_file_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let witness = WitnessFiles::write(folder.path(), 7).unwrap();
        witness.compare().unwrap();
        let largest = OpenOptions::new().write(true).open(witness.path(5)).unwrap();
        let was = witness.content(5, SIZES[5])[2_000_000];
        largest.write_all_at(&[was ^ 1], 2_000_000).unwrap();
        let error = witness.compare().unwrap_err();
        assert!(matches!(error, Error::Wrong(_)), "{error}");
        assert!(error.to_string().contains("from byte 2000000 on"), "{error}");
        File::create(witness.path(1)).unwrap().set_len(4094).unwrap();
        let error = witness.compare().unwrap_err().to_string();
        assert!(error.contains("had 4095 bytes and has 4094"), "{error}");
        drop(witness);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
