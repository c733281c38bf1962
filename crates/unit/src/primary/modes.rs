//! Mode parameters that an initiator can change: the current and the saved values. `mode_parameters` makes
//! mode pages from them.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use scsi::Sense;

use crate::store::{UnitRecordKind, UnitStore, damaged};

/// The mode parameters that an initiator can change. The default value of each is false.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Modes {
    /// WCE=0 in the Caching mode page of a block device: every write is stable before its status, though the volume
    /// has a write cache.
    pub write_through: bool,
    /// SWP in the Control mode page: writes are refused.
    pub write_protect: bool,
    /// D_SENSE in the Control mode page: sense data comes in descriptor format.
    pub descriptor_sense: bool,
}

/// The values in force, and the saved values, which a reset puts in force.
pub(crate) struct ModeSettings {
    current: AtomicU8,
    saved: AtomicU8,
    store: Option<Arc<dyn UnitStore>>,
}

impl Modes {
    const fn to_bits(self) -> u8 {
        (self.write_through as u8) << 2
            | (self.write_protect as u8) << 1
            | self.descriptor_sense as u8
    }

    const fn from_bits(bits: u8) -> Self {
        Self {
            write_through: bits & 4 != 0,
            write_protect: bits & 2 != 0,
            descriptor_sense: bits & 1 != 0,
        }
    }
}

impl ModeSettings {
    /// Returns the default values, for a unit that saves none.
    pub(crate) fn new() -> Self {
        Self { current: AtomicU8::new(0), saved: AtomicU8::new(0), store: None }
    }

    pub(crate) fn load(store: Arc<dyn UnitStore>) -> io::Result<Self> {
        let bits = match store.load(UnitRecordKind::Modes)?.as_deref() {
            None => 0,
            Some([VERSION, bits @ 0..8]) => *bits,
            Some(_) => return Err(damaged(UnitRecordKind::Modes)),
        };
        Ok(Self { current: AtomicU8::new(bits), saved: AtomicU8::new(bits), store: Some(store) })
    }

    pub(crate) fn current(&self) -> Modes {
        Modes::from_bits(self.current.load(Ordering::Acquire))
    }

    /// Returns the saved values; `None` if the unit saves none.
    pub(crate) fn saved(&self) -> Option<Modes> {
        self.store.as_ref()?;
        Some(Modes::from_bits(self.saved.load(Ordering::Acquire)))
    }

    /// Puts the saved values in force, as a reset does.
    pub(crate) fn reset(&self) {
        self.current.store(self.saved.load(Ordering::Acquire), Ordering::Release);
    }

    /// Puts values in force. Returns true if that is a change.
    pub(crate) fn set(&self, modes: Modes) -> bool {
        self.current.swap(modes.to_bits(), Ordering::AcqRel) != modes.to_bits()
    }

    /// Saves values, which the next reset puts in force.
    pub(crate) async fn save(&self, modes: Modes) -> Result<(), Sense> {
        let Some(store) = &self.store else { return Err(Sense::invalid_bit_in_cdb(1, 0)) };
        let kept = store.save(UnitRecordKind::Modes, vec![VERSION, modes.to_bits()]).await;
        kept.map_err(|_| Sense::INTERNAL_TARGET_FAILURE)?;
        self.saved.store(modes.to_bits(), Ordering::Release);
        Ok(())
    }
}

/// Version of the stored record, which is followed by a byte of flags: `docs/formats/state.md`.
const VERSION: u8 = 1;
