//! Several volumes as one, so that one cache may lie on all of them: each at a place of its own, far
//! from the next.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::{
    Allocation, Claim, Data, Dirty, Durability, EpochRollback, Error, ExclusiveWriter, Extensions,
    Extent, Geometry, Holding, Io, Lba, Provisioning, Resizable, Stack, ThinSpaceUsage, Volume,
};

/// Volumes with blocks of one size. Each begins [`JoinedVolume::STRIDE_BYTES`] behind the one before, so that
/// it may grow where it is; between its end and the next there is nothing, and no call goes beyond an
/// end.
///
/// What is written between two flushes is whole or nothing in each member that promises that, and not
/// in all of them together: they are flushed side by side.
pub struct JoinedVolume {
    places: Vec<Option<JoinedRegion>>,
    block_size: u32,
}

/// One of the volumes that are joined.
pub struct JoinedVolumeMember {
    /// What it is called in errors.
    pub name: String,
    /// The volume.
    pub lower: Stack,
    /// See [`Claim::granted`]: by this member.
    pub granted: u64,
    /// The opening that this member granted last; 0: none ever was.
    pub opening: u64,
    /// See [`Claim::is_dirty`]: of this member.
    pub is_dirty: Dirty,
}

struct JoinedRegion {
    member: JoinedVolumeMember,
    /// Writes and discards that are over, whatever became of them. What was there before is not ours
    /// to flush.
    written: AtomicU64,
    /// So many of them are stable. That is noted when a flush has succeeded, and by none that was dropped:
    /// whoever flushes meanwhile flushes, too.
    flushed: AtomicU64,
    /// How its last flush failed, until whoever flushes all has been told. A member tells of a loss once: of
    /// what it told one that was dropped, the next hears.
    untold: Mutex<Option<Error>>,
}

impl JoinedVolume {
    /// How many places there are.
    pub const PLACES: usize = 16;
    /// From the beginning of one member to that of the next: 64 PiB, far more than a volume has; all
    /// places together are less than an address can count.
    pub const STRIDE_BYTES: u64 = 1 << 56;

    /// Joins volumes, by their places. A place may be empty.
    ///
    /// # Errors
    /// [`Error::Device`] if there are none or too many, one is too large, or their blocks differ.
    pub fn new(members: Vec<Option<JoinedVolumeMember>>) -> Result<Self, Error> {
        let refused = |why: String| Err(Error::Device(why.into()));
        if members.len() > Self::PLACES {
            return refused(format!("{} volumes are more than {}", members.len(), Self::PLACES));
        }
        let mut geometries =
            members.iter().flatten().map(|member| (member, member.lower.geometry()));
        let Some((first, Geometry { block_size, .. })) = geometries.next() else {
            return refused("there is no volume".into());
        };
        for (member, geometry) in geometries {
            if geometry.block_size != block_size {
                let (one, other) = (&first.name, &member.name);
                let size = geometry.block_size;
                return refused(format!(
                    "{one} has blocks of {block_size} bytes, and {other} of {size}"
                ));
            }
        }
        let too_large =
            |member: &&JoinedVolumeMember| member.lower.geometry().bytes() > Self::STRIDE_BYTES;
        if let Some(member) = members.iter().flatten().find(too_large) {
            return refused(format!("{} has more than {} bytes", member.name, Self::STRIDE_BYTES));
        }
        Ok(Self {
            places: members.into_iter().map(|member| member.map(JoinedRegion::new)).collect(),
            block_size,
        })
    }

    /// Blocks from the beginning of one member to that of the next.
    #[must_use]
    pub fn stride(&self) -> u64 {
        Self::STRIDE_BYTES / u64::from(self.block_size)
    }

    /// The volume at a place.
    #[must_use]
    pub fn member(&self, place: usize) -> Option<&JoinedVolumeMember> {
        self.places.get(place)?.as_ref().map(|place| &place.member)
    }

    /// Those that are there, with their places.
    pub fn members(&self) -> impl Iterator<Item = (usize, &JoinedVolumeMember)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(number, place)| Some((number, &place.as_ref()?.member)))
    }

    /// Gives back what was claimed of those that nothing is dirty of: another one has refused.
    pub async fn give_back(&self) {
        let clean = self.members().filter(|(_, member)| !member.is_dirty.get());
        for released in join_all(clean.map(|(_, member)| member.lower.extensions().release())).await
        {
            // Not heard of, it stays, and this log is let in again.
            tracing::debug!(?released, "gave a claim back");
        }
    }

    fn occupied(&self) -> impl Iterator<Item = &JoinedRegion> {
        self.places.iter().flatten()
    }

    /// Where an extent is: in which member, and from which of its blocks on.
    fn locate(&self, extent: Extent) -> Result<(&JoinedRegion, u64, Extent), Error> {
        let number = extent.lba.0 / self.stride();
        let start = number * self.stride();
        let place = self.places.get(number as usize).and_then(Option::as_ref);
        let here = Extent { lba: Lba(extent.lba.0 - start), blocks: extent.blocks };
        // One that has outgrown its place has nothing behind it: that is the next one's.
        let is_inside = |place: &&JoinedRegion| {
            let geometry = place.member.lower.geometry();
            here.end().0 <= self.stride() && geometry.check_extent(here).is_ok()
        };
        place.filter(is_inside).map(|place| (place, start, here)).ok_or(Error::OutOfRange(extent))
    }

    fn blocks(&self, length: usize) -> u32 {
        u32::try_from(length.div_ceil(self.block_size as usize)).unwrap_or(u32::MAX)
    }
}

impl JoinedRegion {
    fn new(member: JoinedVolumeMember) -> Self {
        let (written, flushed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { member, written, flushed, untold: Mutex::default() }
    }

    /// An error in the addresses of the whole, with the name of whose it is.
    fn up(&self, start: u64, error: Error) -> Error {
        let up = |extent: Extent| Extent {
            lba: Lba(extent.lba.0.saturating_add(start)),
            blocks: extent.blocks,
        };
        let named = |reason: Arc<str>| format!("{}: {reason}", self.member.name).into();
        match error {
            Error::OutOfRange(extent) => Error::OutOfRange(up(extent)),
            Error::Medium { extent, reason } => Error::Medium { extent: up(extent), reason },
            Error::Away(reason) => Error::Away(named(reason)),
            Error::Unreachable(reason) => Error::Unreachable(named(reason)),
            Error::Device(reason) => Error::Device(named(reason)),
            Error::Fenced(reason) => Error::Fenced(named(reason)),
            Error::ReadOnly | Error::NoSpace | Error::Busy(_) | Error::TooLong { .. } => error,
        }
    }

    /// Something was written since its last flush.
    fn is_unflushed(&self) -> bool {
        self.flushed.load(Ordering::SeqCst) < self.written.load(Ordering::SeqCst)
    }

    async fn flush(&self) -> Result<(), Error> {
        let written = self.written.load(Ordering::SeqCst);
        let flushed = self.member.lower.flush().await.map_err(|error| self.up(0, error));
        match &flushed {
            Ok(()) => drop(self.flushed.fetch_max(written, Ordering::SeqCst)),
            Err(error) => *self.untold.lock() = Some(error.clone()),
        }
        flushed
    }

    /// The claim as it is for this member. It succeeds the opening that this one granted last and those
    /// after it, and none before, which others may lack: a member that knows one of these has gone back.
    fn claim(&self, claim: &Claim) -> Claim {
        let JoinedVolumeMember { granted, opening, is_dirty, .. } = &self.member;
        let older = match claim.predecessors.iter().position(|other| other == opening) {
            Some(own) => own + 1,
            // There were too many since; the first is that of `claim.granted`, which stays.
            None => usize::from(claim.granted > 0 && *granted > claim.granted),
        };
        let newer = claim.predecessors.iter().copied().skip(older);
        let own = Some(*opening).filter(|opening| *opening != 0);
        Claim {
            granted: *granted,
            predecessors: own.into_iter().chain(newer).collect(),
            is_dirty: is_dirty.clone(),
            ..claim.clone()
        }
    }
}

/// Something is unflushed from when it is over, whatever became of it.
struct UnflushedChangeGuard<'a>(&'a AtomicU64);

impl Drop for UnflushedChangeGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The first error, if there is one.
fn all(results: impl IntoIterator<Item = Result<(), Error>>) -> Result<(), Error> {
    results.into_iter().fold(Ok(()), Result::and)
}

impl Volume for JoinedVolume {
    fn geometry(&self) -> Geometry {
        let members = || self.occupied().map(|place| place.member.lower.geometry());
        Geometry {
            block_size: self.block_size,
            physical_block_size: members().map(|m| m.physical_block_size).max().unwrap_or(4096),
            blocks: self.stride() * Self::PLACES as u64,
            read_only: false,
            thin: members().any(|member| member.thin),
            volatile_cache: members().any(|member| member.volatile_cache),
            atomic_blocks: 0,
            // Of each by itself: all of it may be one's.
            epoch_blocks: members().map(|m| m.epoch_blocks).filter(|b| *b > 0).min().unwrap_or(0),
            key_erasable: false,
            in_place: members().all(|member| member.in_place),
        }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        match self.locate(extent) {
            Ok((place, start, here)) => {
                let read = place.member.lower.read(here);
                Io::new(async move { read.await.map_err(|error| place.up(start, error)) })
            }
            Err(error) => Io::done(Err(error)),
        }
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        match self.locate(Extent { lba, blocks: self.blocks(data.len()) }) {
            Ok((place, start, here)) => Io::new(async move {
                let _written = UnflushedChangeGuard(&place.written);
                let written = place.member.lower.write(here.lba, data, durability).await;
                written.map_err(|error| place.up(start, error))
            }),
            Err(error) => Io::done(Err(error)),
        }
    }

    /// Of those that something was written to: one that is away holds up no flush of what others got.
    ///
    /// Dropped in the middle, it has flushed some of them, and the next one does the rest and tells of what
    /// this one has heard.
    fn flush(&self) -> Io<'_, ()> {
        let flushes: Vec<_> =
            self.occupied().filter(|place| place.is_unflushed()).map(JoinedRegion::flush).collect();
        Io::new(async move {
            let flushed = join_all(flushes).await;
            // Nothing waits from here on: this is told.
            let untold = self.occupied().filter_map(|place| place.untold.lock().take());
            all(flushed.into_iter().chain(untold.map(Err)))
        })
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        match self.locate(extent) {
            Ok((place, start, here)) => Io::new(async move {
                let _written = UnflushedChangeGuard(&place.written);
                let discarded = place.member.lower.discard(here).await;
                discarded.map_err(|error| place.up(start, error))
            }),
            Err(error) => Io::done(Err(error)),
        }
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.occupied().try_for_each(|place| {
            place.member.lower.admit(bytes).map_err(|error| place.up(0, error))
        })
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            provisioning: Some(self),
            resizable: Some(self),
            rollback: Some(self),
            writer: Some(self),
            ..Extensions::default()
        }
    }
}

impl Provisioning for JoinedVolume {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        match self.locate(extent) {
            Ok((place, start, here)) => {
                let asked = place.member.lower.extensions().allocation(here);
                Io::new(async move { asked.await.map_err(|error| place.up(start, error)) })
            }
            Err(error) => Io::done(Err(error)),
        }
    }

    /// Not known: each member has a space of its own.
    fn usage(&self) -> Option<ThinSpaceUsage> {
        None
    }
}

impl Resizable for JoinedVolume {
    fn refresh(&self) {
        self.occupied().for_each(|place| place.member.lower.extensions().refresh());
    }
}

impl EpochRollback for JoinedVolume {
    /// Of those that have epochs; the others keep what they got, and get it again.
    fn roll_back(&self) -> Io<'_, ()> {
        Io::new(async move {
            let has_epochs = |place: &&JoinedRegion| place.member.lower.geometry().epoch_blocks > 0;
            let each = self.occupied().filter(has_epochs).map(|place| async {
                let rolled_back = place.member.lower.extensions().roll_back().await;
                if rolled_back.is_ok() {
                    // What was lost is among what is given up.
                    *place.untold.lock() = None;
                }
                rolled_back.map_err(|error| place.up(0, error))
            });
            all(join_all(each).await)
        })
    }
}

impl ExclusiveWriter for JoinedVolume {
    /// Asks each. One that refuses is enough to be refused; what others have granted stays, see
    /// [`JoinedVolume::give_back`]. One that is away is asked when it comes back.
    fn claim(&self, claim: Claim) -> Io<'_, Holding> {
        Io::new(async move {
            let asked = self.occupied().map(|place| async {
                let answer = place.member.lower.extensions().claim(place.claim(&claim)).await;
                match answer.map_err(|error| place.up(0, error)) {
                    Err(Error::Fenced(reason)) => Ok(Holding::Refused(reason)),
                    Err(error) if error.may_pass() => Ok(Holding::Waiting),
                    Err(error) => Err(error),
                    Ok(holding) => Ok(named(&place.member, holding)),
                }
            });
            let answers: Result<Vec<_>, _> = join_all(asked).await.into_iter().collect();
            Ok(together(answers?.into_iter()))
        })
    }

    fn holding(&self) -> Holding {
        let members = self.occupied().map(|place| &place.member);
        together(members.map(|member| named(member, member.lower.extensions().holding())))
    }

    fn release(&self) -> Io<'_, ()> {
        Io::new(async move {
            let released = self.occupied().map(|place| async {
                place.member.lower.extensions().release().await.map_err(|error| place.up(0, error))
            });
            all(join_all(released).await)
        })
    }
}

/// A refusal with the name of whose it is.
fn named(member: &JoinedVolumeMember, holding: Holding) -> Holding {
    match holding {
        Holding::Refused(reason) => Holding::Refused(format!("{}: {reason}", member.name).into()),
        other => other,
    }
}

/// How the claims of all stand: refused as soon as one is, waiting while one is; otherwise the best of
/// them, since who grants nothing cannot be made to.
fn together(holdings: impl Iterator<Item = Holding>) -> Holding {
    let rank = |holding: &Holding| match holding {
        Holding::Nothing => 0,
        Holding::Unsupported => 1,
        Holding::Reserved => 2,
        Holding::Held => 3,
        Holding::Waiting => 4,
        Holding::Refused(_) => 5,
    };
    holdings.max_by_key(rank).unwrap_or_default()
}

#[cfg(test)]
mod tests;
