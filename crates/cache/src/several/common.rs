//! Several volumes in one log. All their writes have one order, so recovery restores a consistent prefix of
//! all volumes together.
//!
//! The log identifies its volumes by name, and records the region of each in its address space. Layers above
//! see each volume on its own.

use std::sync::Arc;

use journal::{
    identity::LogVolumeIdentity,
    members::{self, MemberRecord},
    recovery::{NoSuperblock, superblock},
    superblock::MEMBERS_BYTES,
};
use volume::{
    Allocation, Data, Dirty, Durability, Error, Extensions, Extent, Geometry, Io, JoinedVolume,
    Lba, Provisioning, Stack, ThinSpaceUsage, Volume,
};

use crate::{
    cache::Cache,
    lower::extent::JoinedMembers,
    mode,
    nvram::StableMemory,
    open::{self, Parts},
    refusal::CacheOpenError,
    settings::Settings,
    slots::sectors::SLOT_BYTES,
};

/// One of the volumes that share a cache and its log.
pub struct CommonMember {
    /// The name of the volume. Data that was written to a volume is never sent to a volume of another name.
    pub name: String,
    /// Identifies the volume before the node has answered. See [`crate::MemberRecord`].
    pub key: u64,
    pub lower: Stack,
}

impl Cache {
    /// Opens the cache of several volumes: recovers the content of log and NVRAM for each of them, or formats
    /// a log disk that is all zeros. Returns the cached volumes in the order of `members`.
    ///
    /// The order of `members` may differ from that of the last opening. A volume that the log does not know
    /// is added. A volume that is left out is removed, if the log has no dirty data for it.
    ///
    /// # Errors
    /// See [`CacheOpenError`].
    pub async fn open_common(
        settings: Settings,
        members: Vec<CommonMember>,
        log: Stack,
        nvram: Option<Box<dyn StableMemory>>,
    ) -> Result<(Arc<Self>, Vec<Stack>), CacheOpenError> {
        check_settings(&settings)?;
        let known = match superblock(&log).await {
            Ok(superblock) => superblock.members,
            // Ignore a log without a usable superblock here: `open` formats it or reports the error.
            Err(NoSuperblock::Blank | NoSuperblock::Garbage | NoSuperblock::Version(_)) => {
                Vec::new()
            }
            Err(NoSuperblock::Io(error)) => return Err(CacheOpenError::Log(error)),
        };
        let records = records(&known, &members)?;
        let places: Vec<_> = records.iter().map(|record| record.place).collect();
        let joined = join(&records, members)?;
        let identity = LogVolumeIdentity { name: NAME.into(), geometry: joined.geometry() };
        let parts = Parts { lower: Arc::clone(&joined) as Stack, log, nvram };
        let joining = JoinedMembers { joined, records };
        let shared = open::open(settings, parts, &identity, None, Some(joining)).await?;
        let cache = Self::of(shared);
        let above = |place| Arc::new(OneOfSeveral::new(Arc::clone(&cache), place)) as Stack;
        let above = places.into_iter().map(above).collect();
        Ok((cache, above))
    }

    /// Returns the volumes that were removed with dirty data and have not been added again: the name, and the
    /// bytes of dirty data that were discarded.
    pub async fn given_up(&self) -> Vec<(String, u64)> {
        let superblock = self.shared().log.superblock.lock().await;
        let members = &superblock.members;
        let is_back = |name: &str| members.iter().any(|other| other.counts() && other.name == name);
        let given_up = members.iter().filter_map(|member| Some((member, member.given_up?.slots)));
        given_up
            .filter(|(member, _)| !is_back(&member.name))
            .map(|(member, slots)| (member.name.clone(), slots * SLOT_BYTES as u64))
            .collect()
    }
}

/// Checks that all writes go through the log. Otherwise the log would not keep the order over all volumes.
fn check_settings(settings: &Settings) -> Result<(), CacheOpenError> {
    let is_right = mode::fits_common(settings) && !settings.shares;
    let why = "a cache of several volumes needs strict order, all writes through its log, and \
               volumes that are not shared";
    if is_right { Ok(()) } else { Err(CacheOpenError::Settings(why.into())) }
}

/// Returns the member records for the superblock. A volume that the log has a record of keeps its region, and
/// a new one gets a free region.
fn records(
    known: &[MemberRecord],
    members: &[CommonMember],
) -> Result<Vec<MemberRecord>, CacheOpenError> {
    let mut records: Vec<MemberRecord> = Vec::new();
    let is_out = |record: &&MemberRecord| record.given_up.is_some_and(|it| !it.may_return);
    for CommonMember { name, key, lower } in members {
        if let Some(out) = known.iter().filter(is_out).find(|record| record.name == *name) {
            let slots = out.given_up.map_or(0, |given_up| given_up.slots);
            return Err(CacheOpenError::GivenUp { name: name.clone(), slots });
        }
        if records.iter().any(|record| record.name == *name) {
            let message = format!("volume \"{name}\" is listed twice");
            return Err(CacheOpenError::Settings(message));
        }
        let geometry = lower.geometry();
        let was = known.iter().find(|record| record.name == *name && record.counts());
        let given_up = || known.iter().rfind(|record| record.name == *name);
        if let Some(was) = was.filter(|was| was.geometry.blocks > geometry.blocks) {
            return Err(CacheOpenError::Geometry {
                recorded_blocks: was.geometry.blocks,
                recorded_size: was.geometry.block_size,
                blocks: geometry.blocks,
                size: geometry.block_size,
            });
        }
        let stays = |record: &&MemberRecord| {
            record.counts() && members.iter().any(|member| member.name == record.name)
        };
        let place = was.map(|was| was.place).or_else(|| {
            let staying = known.iter().filter(stays);
            free_place(known, records.iter().chain(staying))
        });
        let Some(place) = place else {
            let message = format!("there are more than {} volumes", JoinedVolume::PLACES);
            return Err(CacheOpenError::Settings(message));
        };
        records.push(MemberRecord {
            place,
            name: name.clone(),
            key: *key,
            geometry,
            granted: was.map_or(0, |was| was.granted),
            // Keep the number of the opening that this volume last granted, even if the volume was removed
            // meanwhile: the volume recognises the log by this number.
            opening: was.or_else(given_up).map_or(0, |was| was.opening),
            given_up: None,
        });
    }
    let given_up = known.iter().filter(|record| !record.counts());
    let all: Vec<_> = records.iter().chain(given_up).cloned().collect();
    if !members::encode(&all, &mut [0; MEMBERS_BYTES]) {
        let message = "the names of its volumes together are too long";
        return Err(CacheOpenError::Settings(message.into()));
    }
    Ok(records)
}

/// Returns a region that no volume has or had. If there is none, returns the region of a volume that this
/// opening leaves out. Prefers one that was not removed with dirty data, so that the log keeps the records of
/// such removals.
fn free_place<'a>(
    known: &[MemberRecord],
    taken: impl Iterator<Item = &'a MemberRecord>,
) -> Option<usize> {
    let taken: Vec<_> = taken.map(|record| record.place).collect();
    let free = || (0..JoinedVolume::PLACES).filter(|place| !taken.contains(place));
    let never_used = |place: &usize| known.iter().all(|record| record.place != *place);
    let counts = |place: &usize| known.iter().any(|r| r.place == *place && r.counts());
    free().find(never_used).or_else(|| free().find(counts)).or_else(|| free().next())
}

fn join(
    records: &[MemberRecord],
    members: Vec<CommonMember>,
) -> Result<Arc<JoinedVolume>, CacheOpenError> {
    let mut places: Vec<Option<volume::JoinedVolumeMember>> =
        (0..JoinedVolume::PLACES).map(|_| None).collect();
    for (record, CommonMember { name, lower, .. }) in records.iter().zip(members) {
        let &MemberRecord { place, granted, opening, .. } = record;
        let is_dirty = Dirty::default();
        let member = volume::JoinedVolumeMember { name, lower, granted, opening, is_dirty };
        places[place] = Some(member);
    }
    let joined =
        JoinedVolume::new(places).map_err(|error| CacheOpenError::Settings(error.to_string()))?;
    Ok(Arc::new(joined))
}

/// One volume of a cache that several volumes share, as the layers above see it.
struct OneOfSeveral {
    cache: Arc<Cache>,
    joined: Arc<JoinedVolume>,
    place: usize,
    /// The first block of the volume in the joined address space.
    start: u64,
}

impl OneOfSeveral {
    fn new(cache: Arc<Cache>, place: usize) -> Self {
        let joined = cache.shared().lower.joined.clone().expect("it was opened over several");
        let start = place as u64 * joined.stride();
        Self { cache, joined, place, start }
    }

    fn down(&self, extent: Extent) -> Extent {
        Extent { lba: Lba(self.start + extent.lba.0), ..extent }
    }

    /// Converts an error of the joined address space to the block addresses of this volume.
    fn up(&self, error: Error) -> Error {
        let up = |extent: Extent| Extent {
            lba: Lba(extent.lba.0.saturating_sub(self.start)),
            blocks: extent.blocks,
        };
        match error {
            Error::OutOfRange(extent) => Error::OutOfRange(up(extent)),
            Error::Medium { extent, reason } => Error::Medium { extent: up(extent), reason },
            other => other,
        }
    }
}

impl Volume for OneOfSeveral {
    fn geometry(&self) -> Geometry {
        let member = self.joined.member(self.place).expect("it has a place");
        let lower = member.lower.geometry();
        let cache = self.cache.geometry();
        Geometry {
            blocks: self.cache.shared().lower.extents.blocks(self.place),
            physical_block_size: lower.physical_block_size.max(4096),
            read_only: lower.read_only,
            thin: lower.thin,
            ..cache
        }
    }

    // The extents are checked here: a call beyond the end of this volume would access blocks of another one.

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        if let Err(error) = self.geometry().check_extent(extent) {
            return Io::done(Err(error));
        }
        let read = self.cache.read(self.down(extent));
        Io::new(async move { read.await.map_err(|error| self.up(error)) })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        match self.geometry().check_write(lba, data.len()) {
            Ok(extent) => {
                let write = self.cache.write(self.down(extent).lba, data, durability);
                Io::new(async move { write.await.map_err(|error| self.up(error)) })
            }
            Err(error) => Io::done(Err(error)),
        }
    }

    fn flush(&self) -> Io<'_, ()> {
        self.cache.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        if let Err(error) = self.geometry().check_discard(extent) {
            return Io::done(Err(error));
        }
        let discard = self.cache.discard(self.down(extent));
        Io::new(async move { discard.await.map_err(|error| self.up(error)) })
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.cache.admit(bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        // The other abilities of the shared cache act on all of its volumes, so they are not offered here.
        Extensions {
            provisioning: Some(self),
            resizable: self.cache.extensions().resizable,
            ..Extensions::default()
        }
    }
}

impl Provisioning for OneOfSeveral {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        if let Err(error) = self.geometry().check_extent(extent) {
            return Io::done(Err(error));
        }
        let asked = self.cache.extensions().allocation(self.down(extent));
        Io::new(async move { asked.await.map_err(|error| self.up(error)) })
    }

    /// Returns `None`, as the cache itself does: a block may take space in the log, in the lower volume, or
    /// in both.
    fn usage(&self) -> Option<ThinSpaceUsage> {
        None
    }
}

/// The name in the superblock of a log for several volumes. No volume has this name.
const NAME: &str = "several volumes";

#[cfg(test)]
mod tests {
    use journal::BLOCK_BYTES;
    use volume::MemVolume;

    use super::*;
    use crate::slots::sectors::{SECTORS, WHOLE};

    fn volume(blocks: u64) -> Stack {
        Arc::new(MemVolume::new(Geometry::with_blocks(blocks)))
    }

    async fn open(log: &Stack, sizes: &[u64]) -> Result<(Arc<Cache>, Vec<Stack>), CacheOpenError> {
        let settings =
            Settings { dram_bytes: 1 << 20, nvram_bytes: 1 << 18, ..Settings::default() };
        let member = |(key, &blocks): (usize, &u64)| {
            let (name, key) = (format!("volume {key}"), key as u64);
            CommonMember { name, key, lower: volume(blocks) }
        };
        let members = sizes.iter().enumerate().map(member).collect();
        Cache::open_common(settings, members, Arc::clone(log), None).await
    }

    fn log() -> Stack {
        let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(1024) };
        Arc::new(MemVolume::new(geometry))
    }

    /// `LowerVolume::whole` returns 0 for a slot behind the end of a volume. Destage sends no sector of such
    /// a slot and counts it as sent, so dirty data there would be lost silently.
    #[tokio::test]
    async fn a_slot_between_two_volumes_is_never_whole_and_refuses_every_call() {
        let (cache, _above) = open(&log(), &[803, 24]).await.expect("opened");
        let shared = cache.shared();
        let second = JoinedVolume::STRIDE_BYTES / SLOT_BYTES as u64;
        let whole = [0, 99, 100, 101, second - 1, second, second + 2, second + 3, 15 * second];
        let whole = whole.map(|slot| shared.lower.whole(slot));
        assert_eq!(whole, [WHOLE, WHOLE, 0b111, 0, 0, WHOLE, WHOLE, 0, 0]);
        let sectors = second * u64::from(SECTORS);
        for (lba, blocks) in [(803, 1), (800, 8), (808, 8), (sectors - 8, 16), (sectors + 24, 8)] {
            let extent = Extent { lba: Lba(lba), blocks };
            let refused = |e: &Error| matches!(e, Error::OutOfRange(found) if *found == extent);
            assert!(cache.read(extent).await.is_err_and(|e| refused(&e)), "{lba}");
            assert!(cache.discard(extent).await.is_err_and(|e| refused(&e)), "{lba}");
            assert!(
                cache.extensions().allocation(extent).await.is_err_and(|e| refused(&e)),
                "{lba}"
            );
            let zeros = Data::zeros(blocks as usize * 512);
            let written = cache.write(extent.lba, zeros, Durability::Volatile).await;
            assert!(written.is_err_and(|e| refused(&e)), "{lba}");
        }
        assert_eq!(cache.statistics().destage.dirty_bytes, 0);
    }

    /// A log with dirty data between two regions was damaged, or written by another program.
    #[tokio::test]
    async fn a_log_with_data_between_two_volumes_is_refused() {
        let log = log();
        let (cache, above) = open(&log, &[803, 24]).await.expect("opened");
        let written = above[0].write(Lba(800), Data::zeros(3 * 512), Durability::Volatile).await;
        written.expect("the log takes it");
        drop((cache, above));
        let mut known = superblock(&log).await.expect("a log");
        known.members[0].geometry.blocks = 800;
        let mut block = vec![0; BLOCK_BYTES];
        known.encode(&mut block);
        for lba in [0, 1] {
            let data = Data::from(block.clone());
            log.write(Lba(lba), data, Durability::Stable).await.expect("written");
        }
        let refused = open(&log, &[800, 24]).await.err().expect("it is refused");
        let is_right = |name: &str, slots| (name, slots) == ("volume 0", 1);
        assert!(
            matches!(&refused, CacheOpenError::Beyond { name, slots } if is_right(name, *slots)),
            "{refused}"
        );
        // With 803 blocks, the volume is as long as when the log was written.
        open(&log, &[803, 24]).await.expect("opened");
    }
}
