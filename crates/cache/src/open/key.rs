//! The key of a log at an opening: checks that it is right, and changes the key of a log without data.

use journal::{
    recovery::{FoundIndex, Scan},
    ring::SegmentRing,
    seal::{LogKey, Salt, draw_salt},
    shape::{FIRST_BLOCK, most_segment_slots},
    superblock::Superblock,
};

use crate::{
    refusal::{CacheOpenError, KeyRefusal},
    seals::Seals,
    settings::Settings,
};

/// The key of the settings, and the result of comparing it with that of the log.
pub(super) struct OpeningKey {
    /// The log key of the settings, and the random salt that was drawn for this opening of the log.
    sealing: Option<(LogKey, Salt)>,
    /// The reason why the key of the settings is not that of the log; `None` if it is.
    wrong: Option<KeyRefusal>,
}

impl OpeningKey {
    /// Takes the log key from the settings and draws a new random salt for this opening of the log.
    pub fn new(settings: &Settings, superblock: &Superblock) -> Result<Self, CacheOpenError> {
        let salt = settings.log_key.is_some().then(draw_salt).transpose();
        let salt = salt.map_err(|error| CacheOpenError::Settings(error.into()))?;
        let sealing = settings.log_key.clone().zip(salt);
        Ok(Self { sealing, wrong: wrong_key(settings, superblock) })
    }

    /// Returns the key for a check of the log. A check writes nothing, so the key has no random
    /// salt.
    pub fn for_check(settings: &Settings, superblock: &Superblock) -> Self {
        let sealing = settings.log_key.clone().map(|key| (key, Salt::default()));
        Self { sealing, wrong: wrong_key(settings, superblock) }
    }

    pub fn sealing(&self) -> Option<(LogKey, Salt)> {
        self.sealing.clone()
    }

    pub fn salt(&self) -> Option<Salt> {
        self.sealing.as_ref().map(|(_, salt)| *salt)
    }

    /// Returns true if the log was written with another key, or without encryption.
    pub fn is_wrong(&self) -> bool {
        self.wrong.is_some()
    }

    /// Refuses a wrong key if the log or the NVRAM has data that needs the right one. A log without data may get
    /// another key.
    pub fn refuse_if(&self, has_data: bool) -> Result<(), CacheOpenError> {
        match self.wrong {
            Some(refusal) if has_data => Err(CacheOpenError::Key(refusal)),
            _ => Ok(()),
        }
    }
}

/// Returns the reason why the key of the settings is not that of the log; `None` if it is.
fn wrong_key(settings: &Settings, superblock: &Superblock) -> Option<KeyRefusal> {
    match (&settings.log_key, superblock.key) {
        (None, None) => None,
        (None, Some(_)) => Some(KeyRefusal::Missing),
        (Some(_), None) => Some(KeyRefusal::Needless),
        (Some(key), Some(check)) => {
            (key.check(&superblock.instance.0) != check).then_some(KeyRefusal::Other)
        }
    }
}

/// Returns the seals of a log with the key of the settings; `None` without a key.
pub(super) fn new_seals(settings: &Settings, superblock: &Superblock) -> Option<Seals> {
    let blocks = superblock.ring_end() as usize;
    settings.log_key.clone().map(|key| Seals::new(key, superblock.instance, blocks))
}

/// Prepares a log without data for the key of the settings, which the superblock gets when the NVRAM is taken
/// into use. The next segment becomes the tail of the log, so that recovery never reads older segments, which
/// have another key or shape.
pub(super) fn change(superblock: &mut Superblock, found: &mut Scan, settings: &Settings) {
    let key = settings.log_key.as_ref();
    superblock.segment_slots = superblock.segment_slots.min(most_segment_slots(key.is_some()));
    superblock.index_tail += found.index.frames.len() as u64;
    found.index = FoundIndex::default();
    let (next, block) = (found.ring.next(), found.ring.position());
    (superblock.tail, superblock.tail_block) = (next, block);
    superblock.layouts.clear();
    let longest = superblock.segment_slots + 1;
    found.ring = SegmentRing::new(FIRST_BLOCK, superblock.ring_end(), longest, next, block);
    tracing::info!(encrypted = key.is_some(), "the log is empty, and gets another key");
}
