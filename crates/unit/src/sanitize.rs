//! SANITIZE: work on the whole unit that goes on whatever happens to who asked for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use scsi::{Overwrite, Sense};
use tokio::sync::watch;
use volume::{Data, Durability, Error, Extent, Lba, Stack};

use crate::access::repeated;

/// What becomes of a unit's blocks.
///
/// ```text
///   Sound ──SANITIZE──▶ Running ──done──▶ Sound
///                         │  ▲
///                       failed│ SANITIZE
///                         ▼  │
///                       Failed ──EXIT FAILURE MODE, if AUSE was set──▶ Sound
/// ```
pub(crate) struct Sanitizer {
    /// Not sound: so that a command need not take the lock to learn that all is well.
    holds: AtomicBool,
    state: Mutex<State>,
    /// Counts ends, for who waits for one.
    ended: watch::Sender<u64>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Sound,
    /// Steps done and steps in all.
    Running {
        done: u64,
        all: u64,
        unrestricted_exit: bool,
    },
    Failed {
        unrestricted_exit: bool,
    },
}

/// How what is there is to go.
pub(crate) enum Method {
    /// The pattern, block by block, so many times.
    Overwrite(Overwrite),
    /// Zeros over everything that is mapped, and then no block is.
    BlockErase,
}

impl Default for Sanitizer {
    fn default() -> Self {
        let (ended, _) = watch::channel(0);
        Self { holds: AtomicBool::new(false), state: Mutex::new(State::Sound), ended }
    }
}

impl Sanitizer {
    /// What commands that need the blocks, or anything but being told about, are told.
    pub(crate) fn sense(&self) -> Option<Sense> {
        if !self.holds.load(Ordering::Acquire) {
            return None;
        }
        match *self.state.lock() {
            State::Sound => None,
            State::Running { done, all, .. } => {
                let progress = (u128::from(done) << 16) / u128::from(all.max(1));
                let progress = u16::try_from(progress).unwrap_or(u16::MAX);
                Some(Sense::SANITIZE_IN_PROGRESS.with_progress(progress))
            }
            State::Failed { .. } => Some(Sense::SANITIZE_COMMAND_FAILED),
        }
    }

    /// Whether one goes on; [`Sanitizer::sense`] is also there when one has failed.
    pub(crate) fn is_running(&self) -> bool {
        self.holds.load(Ordering::Acquire) && matches!(*self.state.lock(), State::Running { .. })
    }

    /// EXIT FAILURE MODE (SBC-3, 5.20.5).
    pub(crate) fn exit_failure_mode(&self) -> Result<(), Sense> {
        let mut state = self.state.lock();
        match *state {
            State::Failed { unrestricted_exit: false } => {
                return Err(Sense::invalid_bit_in_cdb(1, 4));
            }
            State::Failed { unrestricted_exit: true } => *state = State::Sound,
            State::Sound | State::Running { .. } => {}
        }
        self.holds.store(*state != State::Sound, Ordering::Release);
        Ok(())
    }

    /// Begins the work in a driver of its own, while no other command of the unit is under way.
    /// What comes back tells how it ended to whoever waits.
    ///
    /// # Errors
    /// One goes on already.
    pub(crate) fn begin(
        self: &Arc<Self>,
        volume: Stack,
        method: Method,
        unrestricted_exit: bool,
        runtime: &tokio::runtime::Handle,
    ) -> Result<impl Future<Output = Result<(), Sense>> + Send + use<>, Sense> {
        {
            let mut state = self.state.lock();
            if matches!(*state, State::Running { .. }) {
                return Err(Sense::SANITIZE_IN_PROGRESS.with_progress(0));
            }
            *state = State::Running { done: 0, all: method.steps(&volume), unrestricted_exit };
            self.holds.store(true, Ordering::Release);
        }
        let mut ended = self.ended.subscribe();
        ended.mark_unchanged();
        let this = Arc::clone(self);
        runtime.spawn(async move {
            // Should the work panic, the unit is left as after a failure.
            let ending = Ending(&this);
            let done = method.run(&volume, &this).await;
            ending.with(done.is_ok());
        });
        let this = Arc::clone(self);
        Ok(async move {
            let _ = ended.changed().await;
            match *this.state.lock() {
                State::Failed { .. } => Err(Sense::SANITIZE_COMMAND_FAILED),
                State::Sound | State::Running { .. } => Ok(()),
            }
        })
    }

    fn step(&self) {
        if let State::Running { done, .. } = &mut *self.state.lock() {
            *done += 1;
        }
    }

    fn end(&self, well: bool) {
        let mut state = self.state.lock();
        let unrestricted_exit = matches!(*state, State::Running { unrestricted_exit: true, .. });
        *state = if well { State::Sound } else { State::Failed { unrestricted_exit } };
        self.holds.store(!well, Ordering::Release);
        drop(state);
        self.ended.send_modify(|count| *count += 1);
    }
}

/// The end of the work, whichever way it comes.
struct Ending<'a>(&'a Sanitizer);

impl Ending<'_> {
    fn with(self, well: bool) {
        self.0.end(well);
        std::mem::forget(self);
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end(false);
    }
}

impl Method {
    /// Pieces of work, for the progress.
    fn steps(&self, volume: &Stack) -> u64 {
        let pieces = volume.geometry().bytes().div_ceil(PIECE);
        match self {
            Self::Overwrite(list) => pieces * u64::from(list.passes),
            Self::BlockErase => 2 * pieces,
        }
    }

    async fn run(&self, volume: &Stack, sanitizer: &Sanitizer) -> Result<(), Error> {
        match self {
            Self::Overwrite(list) => {
                for pass in 0..list.passes {
                    let block = block_of(list, pass, volume.geometry().block_size as usize);
                    for extent in pieces(volume) {
                        write(volume, extent, &block).await?;
                        sanitizer.step();
                    }
                    // One pass is where it belongs before the next goes over it.
                    stubborn(|| volume.flush()).await?;
                }
            }
            Self::BlockErase => {
                let zeros = Bytes::from(vec![0; volume.geometry().block_size as usize]);
                for extent in pieces(volume) {
                    erase(volume, extent, &zeros).await?;
                    sanitizer.step();
                }
                stubborn(|| volume.flush()).await?;
                for extent in pieces(volume) {
                    stubborn(|| volume.discard(extent)).await?;
                    sanitizer.step();
                    tokio::task::yield_now().await;
                }
                stubborn(|| volume.flush()).await?;
            }
        }
        Ok(())
    }
}

/// Zeros over what is mapped: given back alone it would stay on the medium below.
async fn erase(volume: &Stack, extent: Extent, zeros: &Bytes) -> Result<(), Error> {
    let mut rest = extent;
    while rest.blocks > 0 {
        let allocation = stubborn(|| volume.allocation(rest)).await?;
        for run in allocation.runs() {
            if run.mapped {
                write(volume, Extent { lba: rest.lba, blocks: run.blocks }, zeros).await?;
            }
            rest = Extent {
                lba: Lba(rest.lba.0 + u64::from(run.blocks)),
                blocks: rest.blocks - run.blocks,
            };
        }
    }
    Ok(())
}

async fn write(volume: &Stack, extent: Extent, block: &Bytes) -> Result<(), Error> {
    let data: Data = repeated(block, extent.blocks as usize * block.len());
    stubborn(|| volume.write(extent.lba, data.clone(), Durability::Volatile)).await?;
    // A volume in memory is done at once: others get their turn here.
    tokio::task::yield_now().await;
    Ok(())
}

/// Tries again what fails because something is away or full, for as long as a host would: the
/// work ends well, or the unit is lost until another SANITIZE does.
async fn stubborn<'a, T>(call: impl Fn() -> volume::Io<'a, T>) -> Result<T, Error> {
    for _ in 0..TRIES {
        match call().await {
            Err(Error::Busy(_) | Error::Unreachable(_)) => tokio::time::sleep(PAUSE).await,
            result => return result,
        }
    }
    call().await
}

/// A block of a pass: the pattern over and over, turned round in every second pass if so asked.
fn block_of(list: &Overwrite, pass: u8, block_size: usize) -> Bytes {
    let invert = if list.invert && pass % 2 == 1 { 0xff } else { 0 };
    list.pattern.iter().cycle().take(block_size).map(|byte| byte ^ invert).collect()
}

/// The whole volume.
fn pieces(volume: &Stack) -> impl Iterator<Item = Extent> + use<> {
    let geometry = volume.geometry();
    let step = PIECE / u64::from(geometry.block_size);
    (0..geometry.blocks.div_ceil(step)).map(move |index| Extent {
        lba: Lba(index * step),
        blocks: step.min(geometry.blocks - index * step) as u32,
    })
}

/// As much as other commands write at once, in bytes.
const PIECE: u64 = 1 << 20;
/// A minute in all: the SCSI time-out of Linux twice over.
const TRIES: u32 = 300;
const PAUSE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_begins_with_the_pattern_and_every_second_pass_is_turned_round() {
        let list = Overwrite { invert: true, passes: 2, pattern: vec![1, 2, 3] };
        assert_eq!(block_of(&list, 0, 512)[..5], [1, 2, 3, 1, 2]);
        assert_eq!(block_of(&list, 1, 512)[..4], [0xfe, 0xfd, 0xfc, 0xfe]);
    }

    #[test]
    fn only_who_was_promised_a_way_out_leaves_a_failure() {
        let sanitizer = Sanitizer::default();
        assert_eq!((sanitizer.sense(), sanitizer.exit_failure_mode()), (None, Ok(())));
        for unrestricted_exit in [false, true] {
            *sanitizer.state.lock() = State::Running { done: 1, all: 4, unrestricted_exit };
            sanitizer.holds.store(true, Ordering::Release);
            let going = Sense::SANITIZE_IN_PROGRESS.with_progress(0x4000);
            assert_eq!(sanitizer.sense(), Some(going));
            sanitizer.end(false);
            assert_eq!(sanitizer.sense(), Some(Sense::SANITIZE_COMMAND_FAILED));
            assert_eq!(sanitizer.exit_failure_mode().is_ok(), unrestricted_exit);
            assert_eq!(sanitizer.sense().is_none(), unrestricted_exit);
        }
    }
}
