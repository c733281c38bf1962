//! SANITIZE: work on the whole unit that continues after the end of the session that asked for it, and after
//! a restart.

mod method;
mod record;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use scsi::Sense;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
};
use volume::Stack;

pub(crate) use self::method::Method;
use self::record::Unfinished;
use crate::store::{UnitRecordKind, UnitStore, damaged};

/// The state of a SANITIZE of a unit.
///
/// ```text
///   Sound ──SANITIZE──▶ Running ──done──▶ Sound
///                         │  ▲
///                       failed│ SANITIZE
///                         ▼  │
///                       Failed ──EXIT FAILURE MODE, if AUSE was set──▶ Sound
/// ```
///
/// Each step is saved in the store, if there is one, before it has an effect: the beginning of the work
/// before the first block is overwritten, and the end of the work before any initiator can write again.
/// Therefore a restart at any moment finds the work that is to be done, and never overwrites later data.
pub(crate) struct Sanitizer {
    /// True in any state but `Sound`. While it is false, a command need not take the lock.
    holds: AtomicBool,
    state: Mutex<SanitizeState>,
    /// Number of SANITIZE operations that have ended. Commands that wait for an end watch this number.
    ended: watch::Sender<u64>,
    store: Option<Arc<dyn UnitStore>>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SanitizeState {
    Sound,
    /// The number of steps that are done, and the number of all steps.
    Running {
        done: u64,
        all: u64,
        unrestricted_exit: bool,
    },
    Failed {
        unrestricted_exit: bool,
    },
}

impl Sanitizer {
    /// Creates the state of a unit without a store: no SANITIZE is running or has failed.
    pub(crate) fn new() -> Self {
        let (ended, _) = watch::channel(0);
        let state = Mutex::new(SanitizeState::Sound);
        Self { holds: AtomicBool::new(false), state, ended, store: None }
    }

    /// Returns the state of a unit with this store. Work that a restart has interrupted begins again with the first
    /// block, in a task of its own (SBC-3, 4.11: it is resumed after power on). If that is not possible, the work has
    /// failed.
    pub(crate) fn load(store: Arc<dyn UnitStore>, volume: &Stack) -> io::Result<Arc<Self>> {
        let record = store.load(UnitRecordKind::Sanitize)?.unwrap_or_default();
        let this = Arc::new(Self { store: Some(store), ..Self::new() });
        if record.is_empty() {
            return Ok(this);
        }
        let geometry = volume.geometry();
        let unfinished = Unfinished::from_record(&record, geometry.block_size);
        let Unfinished { method, unrestricted_exit } =
            unfinished.ok_or_else(|| damaged(UnitRecordKind::Sanitize))?;
        let possible = |method: &Method| {
            geometry.in_place
                && !geometry.read_only
                && (*method != Method::CryptographicErase || geometry.key_erasable)
        };
        match (method, Handle::try_current()) {
            (Some(method), Ok(runtime)) if possible(&method) => {
                let all = method.steps(volume);
                this.set(SanitizeState::Running { done: 0, all, unrestricted_exit });
                let work = Arc::clone(&this).work(Arc::clone(volume), method, unrestricted_exit);
                runtime.spawn(work);
            }
            _ => this.set(SanitizeState::Failed { unrestricted_exit }),
        }
        Ok(this)
    }

    /// Returns true if no SANITIZE runs and none has failed.
    pub(crate) fn is_sound(&self) -> bool {
        !self.holds.load(Ordering::Acquire)
    }

    /// Returns the sense data with which the unit refuses commands while a SANITIZE runs or has failed.
    pub(crate) fn sense(&self) -> Option<Sense> {
        if self.is_sound() {
            return None;
        }
        match *self.state.lock() {
            SanitizeState::Sound => None,
            SanitizeState::Running { done, all, .. } => {
                let progress = (u128::from(done) << 16) / u128::from(all.max(1));
                let progress = u16::try_from(progress).unwrap_or(u16::MAX);
                Some(Sense::SANITIZE_IN_PROGRESS.with_progress(progress))
            }
            SanitizeState::Failed { .. } => Some(Sense::SANITIZE_COMMAND_FAILED),
        }
    }

    /// Returns true while a SANITIZE runs. [`Sanitizer::sense`] also returns sense data after a failure.
    pub(crate) fn is_running(&self) -> bool {
        self.holds.load(Ordering::Acquire)
            && matches!(*self.state.lock(), SanitizeState::Running { .. })
    }

    /// Performs the service action EXIT FAILURE MODE (SBC-3, 5.20.5).
    pub(crate) async fn exit_failure_mode(&self) -> Result<(), Sense> {
        let state = *self.state.lock();
        match state {
            SanitizeState::Failed { unrestricted_exit: false } => {
                Err(Sense::invalid_bit_in_cdb(1, 4))
            }
            SanitizeState::Failed { unrestricted_exit: true } => {
                self.save(Vec::new()).await.map_err(|_| Sense::INTERNAL_TARGET_FAILURE)?;
                let mut state = self.state.lock();
                // If another SANITIZE has begun while the record was being saved, leave its state unchanged.
                if matches!(*state, SanitizeState::Failed { .. }) {
                    *state = SanitizeState::Sound;
                    self.holds.store(false, Ordering::Release);
                }
                Ok(())
            }
            SanitizeState::Sound | SanitizeState::Running { .. } => Ok(()),
        }
    }

    /// Begins the work in a task of its own. No other command of the unit may be in progress. When this
    /// returns, the beginning is saved in the store. The returned future ends with the work. Dropping either
    /// future does not stop the work.
    ///
    /// # Errors
    /// A SANITIZE is running already, or the store cannot be written. In both cases no block was overwritten.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        volume: Stack,
        method: Method,
        unrestricted_exit: bool,
        runtime: &Handle,
    ) -> Result<impl Future<Output = Result<(), Sense>> + Send + use<>, Sense> {
        let before = {
            let mut state = self.state.lock();
            if matches!(*state, SanitizeState::Running { .. }) {
                return Err(Sense::SANITIZE_IN_PROGRESS.with_progress(0));
            }
            let all = method.steps(&volume);
            let running = SanitizeState::Running { done: 0, all, unrestricted_exit };
            self.holds.store(true, Ordering::Release);
            std::mem::replace(&mut *state, running)
        };
        let mut ended = self.ended.subscribe();
        ended.mark_unchanged();
        let (begins, begun) = oneshot::channel();
        let this = Arc::clone(self);
        runtime.spawn(async move {
            let noted = this.note(&method, unrestricted_exit, before).await;
            let _ = begins.send(noted);
            if noted.is_ok() {
                this.work(volume, method, unrestricted_exit).await;
            }
        });
        begun.await.unwrap_or(Err(Sense::INTERNAL_TARGET_FAILURE))?;
        let this = Arc::clone(self);
        Ok(async move {
            let _ = ended.changed().await;
            match *this.state.lock() {
                SanitizeState::Failed { .. } => Err(Sense::SANITIZE_COMMAND_FAILED),
                SanitizeState::Sound | SanitizeState::Running { .. } => Ok(()),
            }
        })
    }

    /// Saves the beginning of the work. If that fails, restores the state `before`. The record in the store
    /// must then be restored as well, because the next start acts on it. If that fails too, the work counts
    /// as failed.
    async fn note(
        &self,
        method: &Method,
        unrestricted_exit: bool,
        before: SanitizeState,
    ) -> Result<(), Sense> {
        // If the runtime ends while the record is being saved, this guard ends the work as failed.
        let ending = SanitizeEndGuard(self);
        let record = |method| Unfinished { method, unrestricted_exit }.to_record();
        if self.save(record(Some(method.clone()))).await.is_ok() {
            ending.not_yet();
            return Ok(());
        }
        let put_back = match before {
            SanitizeState::Failed { unrestricted_exit } => {
                Unfinished { method: None, unrestricted_exit }.to_record()
            }
            SanitizeState::Sound | SanitizeState::Running { .. } => Vec::new(),
        };
        let after = self.save(put_back).await;
        ending.with(after.map_or(SanitizeState::Failed { unrestricted_exit }, |()| before));
        Err(Sense::INTERNAL_TARGET_FAILURE)
    }

    /// Performs the work of a SANITIZE. The caller has saved the record that the work has begun.
    async fn work(self: Arc<Self>, volume: Stack, method: Method, unrestricted_exit: bool) {
        // If the work panics, dropping this guard records that the SANITIZE has failed.
        let ending = SanitizeEndGuard(&self);
        let done = method.run(&volume, || self.step()).await;
        let record = match done {
            Ok(()) => Vec::new(),
            Err(_) => Unfinished { method: None, unrestricted_exit }.to_record(),
        };
        // Report the end only after it is saved: otherwise a restart could begin again and overwrite new data
        // of hosts.
        let saved = self.save(record).await;
        let well = done.is_ok() && saved.is_ok();
        ending.with(if well {
            SanitizeState::Sound
        } else {
            SanitizeState::Failed { unrestricted_exit }
        });
    }

    async fn save(&self, record: Vec<u8>) -> io::Result<()> {
        match &self.store {
            Some(store) => store.save(UnitRecordKind::Sanitize, record).await,
            None => Ok(()),
        }
    }

    fn step(&self) {
        if let SanitizeState::Running { done, .. } = &mut *self.state.lock() {
            *done += 1;
        }
    }

    fn set(&self, state: SanitizeState) {
        let mut now = self.state.lock();
        *now = state;
        self.holds.store(state != SanitizeState::Sound, Ordering::Release);
    }

    fn end(&self, state: SanitizeState) {
        self.set(state);
        self.ended.send_modify(|count| *count += 1);
    }
}

/// Records that a SANITIZE has failed when this is dropped, unless another result was set before.
struct SanitizeEndGuard<'a>(&'a Sanitizer);

impl SanitizeEndGuard<'_> {
    fn with(self, state: SanitizeState) {
        self.0.end(state);
        std::mem::forget(self);
    }

    fn not_yet(self) {
        std::mem::forget(self);
    }
}

impl Drop for SanitizeEndGuard<'_> {
    fn drop(&mut self) {
        let state = *self.0.state.lock();
        let unrestricted_exit =
            matches!(state, SanitizeState::Running { unrestricted_exit: true, .. });
        self.0.end(SanitizeState::Failed { unrestricted_exit });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_failure_mode_can_be_exited_only_if_unrestricted_exit_was_requested() {
        let sanitizer = Sanitizer::new();
        assert_eq!((sanitizer.sense(), sanitizer.exit_failure_mode().await), (None, Ok(())));
        for unrestricted_exit in [false, true] {
            sanitizer.set(SanitizeState::Running { done: 1, all: 4, unrestricted_exit });
            let going = Sense::SANITIZE_IN_PROGRESS.with_progress(0x4000);
            assert_eq!(sanitizer.sense(), Some(going));
            drop(SanitizeEndGuard(&sanitizer));
            assert_eq!(sanitizer.sense(), Some(Sense::SANITIZE_COMMAND_FAILED));
            assert_eq!(sanitizer.exit_failure_mode().await.is_ok(), unrestricted_exit);
            assert_eq!(sanitizer.sense().is_none(), unrestricted_exit);
        }
    }
}
