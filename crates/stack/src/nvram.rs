//! Opens the NVRAM file of a cache, or of the local leg of a pair's log.

use cache::{MappedFile, NvramSurvival, NvramWatch, StableMemory};
use control::Failure;

use super::file;
use crate::not_opened::NotOpened;

/// An open NVRAM, and the object that checks its file during operation.
type Nvram = (Box<dyn StableMemory>, NvramWatch);

/// Opens or creates the NVRAM of a cache or of a leg of a pair's log, if the settings name one.
pub fn open(settings: &config::CacheLayerSettings) -> Result<Option<Nvram>, NotOpened> {
    let Some(path) = &settings.nvram else { return Ok(None) };
    let opened = MappedFile::open(path, settings.nvram_size.0);
    let opened = match settings.nvram_survives {
        NvramSurvival::Restart => opened,
        NvramSurvival::PowerLoss => opened.and_then(MappedFile::synced),
    };
    let watched = opened.and_then(|opened| {
        let watch = opened.watch(path)?;
        Ok((Box::new(opened) as Box<dyn StableMemory>, watch))
    });
    let watched = watched.map_err(|error| {
        let failure =
            Failure::new(format!("cannot use the NVRAM file {}: {error}", path.display()));
        NotOpened::Refused(failure.remedy(file::io_remedy(&error, path)))
    })?;
    Ok(Some(watched))
}

/// Opens the NVRAM file without a change. Returns `None` if it does not exist yet or cannot be used.
pub fn existing(settings: &config::CacheLayerSettings) -> Option<MappedFile> {
    let path = settings.nvram.as_ref()?;
    MappedFile::inspect(path, settings.nvram_size.0).ok().flatten()
}

/// Stands for an NVRAM file that does not exist yet: blank memory of this length in bytes.
pub struct Blank(pub usize);

impl StableMemory for Blank {
    fn len(&self) -> usize {
        self.0
    }

    fn read(&self, _offset: usize, to: &mut [u8]) {
        to.fill(0);
    }

    fn write(&mut self, _offset: usize, _from: &[u8]) {}
}
