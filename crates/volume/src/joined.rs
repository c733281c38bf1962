//! Joins several volumes into one address space, so that one cache can serve all of them.

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

/// Several volumes with the same block size in one address space. Each member has a region of
/// [`JoinedVolume::STRIDE_BYTES`], so that it can grow in place. The addresses between the end of a member
/// and the next region do not exist, and no call crosses the end of a member.
///
/// Members are flushed concurrently. An epoch is therefore atomic in each member that guarantees this, but
/// not across members.
pub struct JoinedVolume {
    places: Vec<Option<JoinedRegion>>,
    block_size: u32,
}

pub struct JoinedVolumeMember {
    /// The name of the member in error messages.
    pub name: String,
    pub lower: Stack,
    /// The generation of the claim that this member granted last; see [`Claim::granted`].
    pub granted: u64,
    /// Random number of the log opening to which this member granted its last claim; 0 if it has granted none.
    pub opening: u64,
    /// True if the log holds dirty data of this member; see [`Claim::is_dirty`].
    pub is_dirty: Dirty,
}

struct JoinedRegion {
    member: JoinedVolumeMember,
    /// Number of writes and discards that have ended, with success or not. Changes that other users of the member made
    /// earlier are not counted, so they do not cause a flush.
    written: AtomicU64,
    /// The value of `written` that the last successful flush covers. A flush that was dropped does not raise
    /// it, so concurrent callers flush again.
    flushed: AtomicU64,
    /// The error of the last flush of this member, kept until a flush of the joined volume has returned it. A member
    /// reports a loss only once. If that report went to a flush that its caller has dropped, the next flush returns the
    /// error.
    untold: Mutex<Option<Error>>,
}

impl JoinedVolume {
    /// Maximum number of members of a joined volume.
    pub const PLACES: usize = 16;
    /// Distance between the first bytes of two adjacent members: 64 PiB, more than any volume has. All
    /// regions together fit into a 64-bit address.
    pub const STRIDE_BYTES: u64 = 1 << 56;

    /// Joins volumes, each in the region with its index. An index may be empty.
    ///
    /// # Errors
    /// [`Error::Device`] if there are none or too many, one is too large, or their blocks differ.
    pub fn new(members: Vec<Option<JoinedVolumeMember>>) -> Result<Self, Error> {
        let refused = |why: String| Err(Error::Device(why.into()));
        if members.len() > Self::PLACES {
            return refused(format!(
                "{} volumes exceed the maximum of {}",
                members.len(),
                Self::PLACES
            ));
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

    /// Returns the number of blocks between the beginnings of two adjacent members.
    #[must_use]
    pub fn stride(&self) -> u64 {
        Self::STRIDE_BYTES / u64::from(self.block_size)
    }

    /// Returns the member volume whose region has the number `place`.
    #[must_use]
    pub fn member(&self, place: usize) -> Option<&JoinedVolumeMember> {
        self.places.get(place)?.as_ref().map(|place| &place.member)
    }

    /// Returns the member volumes, each with the number of its region.
    pub fn members(&self) -> impl Iterator<Item = (usize, &JoinedVolumeMember)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(number, place)| Some((number, &place.as_ref()?.member)))
    }

    /// Releases the claims of the members without dirty data. Call this after another member has refused its claim.
    pub async fn give_back(&self) {
        let clean = self.members().filter(|(_, member)| !member.is_dirty.get());
        for released in join_all(clean.map(|(_, member)| member.lower.extensions().release())).await
        {
            // If the release fails, the claim stays, and the member grants it to this log again later.
            tracing::debug!(?released, "asked to release the claim on a volume without dirty data");
        }
    }

    fn occupied(&self) -> impl Iterator<Item = &JoinedRegion> {
        self.places.iter().flatten()
    }

    /// Returns the member of an extent, the first block of its region, and the extent within the member.
    fn locate(&self, extent: Extent) -> Result<(&JoinedRegion, u64, Extent), Error> {
        let number = extent.lba.0 / self.stride();
        let start = number * self.stride();
        let place = self.places.get(number as usize).and_then(Option::as_ref);
        let here = Extent { lba: Lba(extent.lba.0 - start), blocks: extent.blocks };
        // A member may have grown past its region. The blocks there belong to the next member, so a call may
        // not use them.
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

    /// Converts an error of this member: adds the member's name, and converts block numbers to those of the joined
    /// volume.
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

    /// Returns true if the member has writes or discards that no flush covers.
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

    /// Returns the claim to present to this member. Its predecessors are the opening that this member granted last and
    /// all later ones. Older openings are left out, even if other members need them: a member that has granted one of
    /// the older openings last was restored from an older copy, and must refuse the claim.
    fn claim(&self, claim: &Claim) -> Claim {
        let JoinedVolumeMember { granted, opening, is_dirty, .. } = &self.member;
        let older = match claim.predecessors.iter().position(|other| other == opening) {
            Some(own) => own + 1,
            // The list does not contain the opening that this member has granted: it is full, and that opening was
            // dropped from it. The first entry is the opening of `claim.granted`; skip it if this member has granted a
            // later one.
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

/// Counts a write or discard as unflushed when it ends, also if the call is cancelled.
struct UnflushedChangeGuard<'a>(&'a AtomicU64);

impl Drop for UnflushedChangeGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns the first error in `results`, if there is one.
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
            // The smallest of all members: an epoch may consist of writes to one member only.
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

    /// Flushes the members with unflushed changes. A member that cannot be reached therefore does not block
    /// flushes of the others.
    ///
    /// If the flush is dropped, some members have been flushed; the next flush does the rest, and also
    /// reports the errors that the dropped one received.
    fn flush(&self) -> Io<'_, ()> {
        let flushes: Vec<_> =
            self.occupied().filter(|place| place.is_unflushed()).map(JoinedRegion::flush).collect();
        Io::new(async move {
            let flushed = join_all(flushes).await;
            // Take the errors only now: no await follows, so the caller cannot drop the flush before it receives them.
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

    /// Returns `None`, since each member volume has its own storage space.
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
    /// Rolls back the members that have epochs. The other members keep their unflushed writes, which the
    /// cache will send again.
    fn roll_back(&self) -> Io<'_, ()> {
        Io::new(async move {
            let has_epochs = |place: &&JoinedRegion| place.member.lower.geometry().epoch_blocks > 0;
            let each = self.occupied().filter(has_epochs).map(|place| async {
                let rolled_back = place.member.lower.extensions().roll_back().await;
                if rolled_back.is_ok() {
                    // Forget an error of an earlier flush: the writes that it concerns have been rolled back.
                    *place.untold.lock() = None;
                }
                rolled_back.map_err(|error| place.up(0, error))
            });
            all(join_all(each).await)
        })
    }
}

impl ExclusiveWriter for JoinedVolume {
    /// Claims each member. If one of them refuses, the whole claim is refused; the other members keep their
    /// grants, see [`JoinedVolume::give_back`]. A member that cannot be reached is asked when it is connected
    /// again.
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

/// Adds the name of the member to a refusal.
fn named(member: &JoinedVolumeMember, holding: Holding) -> Holding {
    match holding {
        Holding::Refused(reason) => Holding::Refused(format!("{}: {reason}", member.name).into()),
        other => other,
    }
}

/// Combines the states of all members' claims. The result is refused if one claim is refused, else waiting if one
/// waits. Otherwise it is the best of the states: a member that does not support claims does not make the result
/// unsupported.
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
