//! Confirmed numbers. They are kept outside of log and NVRAM, and name the write that both must contain. An
//! older copy of log and NVRAM ends earlier and is refused.
//!
//! A number is the serial of a write. The number is raised only after recovery is sure to find that write
//! again. A log that was not replaced by an older copy therefore never ends before its number, whatever power
//! cut or kill happens.

use std::{fmt, sync::Arc};

use journal::identity::InstanceId;
use parking_lot::Mutex;
use volume::Confirmed;

/// Identifies one boot of one machine. No two boots have the same id, on any machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BootId(pub [u8; 16]);

/// The numbers of the newest writes that recovery is sure to find.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ConfirmedWrites {
    /// Every write up to this number is stable, in the log or in the lower volume.
    pub logged: u64,
    /// Every acknowledged write up to this number is in the log or in the NVRAM; at least `logged`.
    pub kept: u64,
    /// The boot within which `kept` is valid; `None` if the NVRAM survives the loss of power.
    pub boot: Option<BootId>,
}

/// Storage outside of log and NVRAM that keeps the [`ConfirmedWrites`] of logs.
pub trait ConfirmedStore: Send + Sync {
    /// Selects `instance` as the log of all later calls, and returns its numbers, or `None` if the store has
    /// none.
    ///
    /// # Errors
    /// The record exists and cannot be used; the text says why. The record must not be treated as missing.
    fn recall(&self, instance: InstanceId) -> Result<Option<ConfirmedWrites>, String>;

    /// Replaces the numbers of the log so that they survive the process. Flushes are acknowledged after this
    /// call, so it must not wait for a disk.
    fn note(&self, confirmed: ConfirmedWrites);

    /// Makes the confirmed numbers stable that were noted last. This may wait for a disk.
    fn sync(&self);

    /// Returns the local time, as text for people, at which the selected log's numbers were noted last;
    /// `None` if it is not known.
    fn noted_at(&self) -> Option<String> {
        None
    }
}

/// Wraps a [`ConfirmedStore`] for [`crate::Settings`], which have to be comparable.
#[derive(Clone)]
pub struct ConfirmedIn(pub Arc<dyn ConfirmedStore>);

impl PartialEq for ConfirmedIn {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for ConfirmedIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConfirmedIn")
    }
}

/// Passes the numbers of an open log's confirmed writes to the claim on the lower volume and to the store that the
/// settings name.
pub(crate) struct Confirming {
    /// The number of the newest confirmed write, which is sent to the lower volume each time that the claim is
    /// presented or updated.
    pub claimed: Confirmed,
    pub store: Option<ConfirmedIn>,
    /// The numbers that were passed to the store last. The lock is held during the call to the store, so that a
    /// lower number never replaces a higher one.
    noted: Mutex<ConfirmedWrites>,
    /// The boot within which `kept` is valid; see [`ConfirmedWrites::boot`].
    boot: Option<BootId>,
    /// True if acknowledged writes in the NVRAM survive the loss of power. The confirmed number in the claim may then
    /// count them.
    nvram_is_stable: bool,
}

impl Confirming {
    pub fn new(
        claimed: Confirmed,
        store: Option<ConfirmedIn>,
        boot: Option<BootId>,
        nvram_is_stable: bool,
    ) -> Self {
        Self { claimed, store, noted: Mutex::default(), boot, nvram_is_stable }
    }

    /// Passes the numbers of a log that was just opened to the store, even if the store has higher ones: a loss may
    /// have been accepted.
    pub fn begin(&self, logged: u64, kept: u64) {
        self.note_if(logged, kept, true);
    }

    /// Passes the numbers of the newest confirmed writes to the claim and to the store, unless higher numbers were
    /// passed before.
    pub fn note(&self, logged: u64, kept: u64) {
        self.note_if(logged, kept, false);
    }

    fn note_if(&self, logged: u64, kept: u64, is_first: bool) {
        // Without a boot id, a later opening cannot find out whether the machine was rebooted, which the NVRAM
        // does not survive.
        let counts = self.nvram_is_stable || self.boot.is_some();
        let kept = if counts { kept.max(logged) } else { logged };
        self.claimed.raise(if self.nvram_is_stable { kept } else { logged });
        let Some(ConfirmedIn(store)) = &self.store else { return };
        let mut noted = self.noted.lock();
        if is_first || logged > noted.logged || kept > noted.kept {
            noted.logged = logged.max(noted.logged);
            noted.kept = kept.max(noted.kept);
            noted.boot = self.boot;
            store.note(*noted);
        }
    }

    /// Returns the confirmed numbers that were passed to the store last.
    pub fn noted(&self) -> ConfirmedWrites {
        *self.noted.lock()
    }
}
