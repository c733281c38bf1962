//! Runs transactions of commands, loads the rows that they need, and waits for commits.

use std::{
    collections::VecDeque,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use object::{ObjectError, Timestamp};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    background::BackgroundJob,
    build::{cancel, copy_one, undo_some},
    committer::CommitJob,
    freeing::free_some,
    groups::BlockRuns,
    loader::LoadJob,
    mutant::DriveMutant,
    options::DriveOptions,
    replacing::replace_some,
    reservation::{BlockWrites, Reservation},
    row_store::{LoadedRows, Need},
    superblock::Superblock,
    tables::Tables,
    transaction::{ActiveBuild, Step, Stop, Transaction},
};

pub(crate) struct DriveCore {
    pub(crate) tables: Arc<Tables>,
    pub(crate) options: DriveOptions,
    /// The boot epoch: the number of this start of the drive.
    pub(crate) boot_epoch: u16,
    /// Boot epochs were given twice.
    pub(crate) has_wrapped: bool,
    pub(crate) superblock: tokio::sync::Mutex<Superblock>,
    pub(crate) loader: mpsc::Sender<LoadJob>,
    pub(crate) committer: mpsc::Sender<CommitJob>,
    /// Wakes the worker; `None`: the drive is closed.
    pub(crate) worker: Mutex<Option<mpsc::SyncSender<()>>>,
    /// The jobs of the worker; `None`: the drive is closed, and goes on with them after its next start.
    pub(crate) jobs: Mutex<Option<VecDeque<BackgroundJob>>>,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
    /// Locks for APPEND, selected by the object: two APPENDs to one object at once would each have to begin again.
    pub(crate) appends: Box<[tokio::sync::Mutex<()>]>,
    /// One partition is copied at a time.
    pub(crate) builds: tokio::sync::Mutex<()>,
    pub(crate) repaired: std::sync::atomic::AtomicU64,
    pub(crate) damaged: std::sync::atomic::AtomicU64,
}

impl DriveCore {
    pub(crate) fn now(&self) -> Timestamp {
        self.options.clock.now()
    }

    /// Runs `step` as one transaction. It may run several times; only the last run has an effect. If `step` needs space,
    /// blocks of removed objects are freed first.
    pub(crate) async fn run<T>(
        &self,
        mut step: impl FnMut(&mut Transaction<'_>) -> Step<T>,
    ) -> Result<T, ObjectError> {
        let mut misses = 0;
        loop {
            let (content, error) = match self.run_alone(&mut step).await {
                Ok(value) => return Ok(value),
                Err(Stop::Work(content)) => {
                    let damaged = format!("the work row of content {content} is missing");
                    (Some(content), ObjectError::Storage(damaged))
                }
                Err(Stop::Failed(error @ ObjectError::Quota { .. })) => (None, error),
                Err(Stop::Copy(id)) => {
                    self.copy_for_change(id).await?;
                    continue;
                }
                Err(Stop::Failed(error)) => return Err(error),
                Err(stop) => unreachable!("{stop:?}"),
            };
            let has_work = {
                let state = self.tables.state.lock();
                state.has_work || !state.builds.failed.is_empty()
            };
            if !has_work && content.is_none() {
                return Err(error);
            }
            // The worker may have freed the last chunks in the meantime, so that the next attempt can succeed.
            let is_more = match content {
                Some(_) => self.free_step(content).await?,
                None => self.work().await?,
            };
            misses = if is_more { 0 } else { misses + 1 };
            if misses > 1 {
                return Err(error);
            }
        }
    }

    /// Frees a bounded number of chunks that nothing refers to any more. Returns false if there are none.
    pub(crate) async fn free_step(&self, content: Option<u64>) -> Result<bool, ObjectError> {
        self.run_alone(&mut |transaction| free_some(transaction, content)).await.map_err(failure)
    }

    /// Does a bounded part of the work in the background. Returns false if there is none.
    pub(crate) async fn work(&self) -> Result<bool, ObjectError> {
        let is_abandoned = |build: ActiveBuild| build.is_abandoned;
        self.run_alone(
            &mut |transaction| match transaction.active_build().is_some_and(is_abandoned) {
                true => cancel(transaction),
                false => Ok(()),
            },
        )
        .await
        .map_err(failure)?;
        let is_replacing = self.run_alone(&mut replace_some).await.map_err(failure)?;
        if is_replacing || self.run_alone(&mut undo_some).await.map_err(failure)? {
            return Ok(true);
        }
        self.free_step(None).await
    }

    /// Copies a part of an object into the partition that is being made, because the object is about to change.
    async fn copy_for_change(&self, id: u64) -> Result<(), ObjectError> {
        self.admit_change().await?;
        if self.run_alone(&mut |transaction| copy_one(transaction, id)).await.is_err() {
            // The change must not wait for a copy that cannot be made. The command that makes the copy fails.
            self.run_alone(&mut cancel).await.map_err(failure)?;
        }
        Ok(())
    }

    async fn run_alone<T>(
        &self,
        step: &mut impl FnMut(&mut Transaction<'_>) -> Step<T>,
    ) -> Step<T> {
        let mut loaded = LoadedRows::default();
        let mut waits = 0;
        loop {
            let stop = match self.attempt(step, &mut loaded) {
                Ok(value) => return Ok(value),
                Err(stop) => stop,
            };
            match stop {
                Stop::Failed(_) | Stop::Work(_) | Stop::Copy(_) => return Err(stop),
                Stop::Missing(need) => self.load(need, &mut loaded).await?,
                Stop::Identifiers => self.commit(true).await?,
                Stop::Full if waits < MOST_WAITS => {
                    waits += 1;
                    self.commit(true).await?;
                }
                Stop::Full => {
                    let groups = &self.tables.state.lock().groups;
                    let (used, limit) = (groups.used * 4096, groups.blocks() * 4096);
                    return Err(ObjectError::Quota { used, limit }.into());
                }
            }
        }
    }

    fn attempt<T>(
        &self,
        step: &mut impl FnMut(&mut Transaction<'_>) -> Step<T>,
        loaded: &mut LoadedRows,
    ) -> Step<T> {
        let mut state = self.tables.state.lock();
        if state.has_format_failed {
            let failed =
                "FORMAT OSD has failed, and may have removed all objects: repeat it".into();
            return Err(Stop::Failed(ObjectError::Storage(failed)));
        }
        if state.is_formatting {
            return Err(Stop::Failed(ObjectError::FormatInProgress));
        }
        if loaded.generation != state.rows.generation {
            *loaded = LoadedRows { generation: state.rows.generation, ..LoadedRows::default() };
        }
        let mut transaction = Transaction::new(&mut state, loaded, &self.tables.mutation);
        match step(&mut transaction) {
            Ok(value) => {
                let adds_work = transaction.adds_work();
                transaction.apply();
                if adds_work {
                    self.wake_worker();
                }
                Ok(value)
            }
            Err(stop) => {
                transaction.abandon();
                Err(stop)
            }
        }
    }

    /// Gives the worker a job. A closed drive takes no job, and goes on after its next start.
    pub(crate) fn add_job(&self, job: BackgroundJob) {
        if let Some(jobs) = &mut *self.jobs.lock() {
            jobs.push_back(job);
        }
        self.wake_worker();
    }

    pub(crate) fn wake_worker(&self) {
        if let Some(worker) = &*self.worker.lock() {
            // A message that was not received yet is enough. A worker that has ended leaves the work to the next start.
            let _ = worker.try_send(());
        }
    }

    async fn load(&self, need: Need, loaded: &mut LoadedRows) -> Result<(), ObjectError> {
        let (reply, answer) = oneshot::channel();
        let gone = || ObjectError::Storage("the tables of the object drive are closed".into());
        self.loader.send(Some((need, reply))).map_err(|_| gone())?;
        let found = answer.await.map_err(|_| gone())??;
        if found.generation == loaded.generation {
            loaded.rows.extend(found.rows);
            loaded.ranges.extend(found.ranges);
        }
        Ok(())
    }

    /// Waits until memory has room for changes that are not stable yet. Each command that changes something calls this
    /// first.
    pub(crate) async fn admit_change(&self) -> Result<(), ObjectError> {
        let (bytes, freed) = {
            let state = self.tables.state.lock();
            (state.rows.delta_bytes, state.groups.pending())
        };
        let most = self.tables.most_changes();
        if bytes > most {
            self.commit(false).await?;
        } else if bytes > most / 2 || freed > MOST_FREED {
            // Begin a commit in the background. Ignore a closed committer: the next commit reports it.
            let _ = self.committer.send(CommitJob::Commit { force: false });
        }
        Ok(())
    }

    /// Makes all changes stable that were applied before the call, with their data. With `force`, commits even if no
    /// row has changed.
    pub(crate) async fn commit(&self, force: bool) -> Result<(), ObjectError> {
        let version = self.tables.state.lock().version;
        let mut progress = self.tables.progress.subscribe();
        let begin = progress.borrow().clone();
        if begin.stable >= version && !force {
            return Ok(());
        }
        let gone = || ObjectError::Storage("the object drive is closed".into());
        self.committer.send(CommitJob::Commit { force }).map_err(|_| gone())?;
        if self.tables.mutation.is(DriveMutant::FlushAnsweredEarly) {
            return Ok(());
        }
        loop {
            {
                let now = progress.borrow_and_update();
                if now.stable >= version && (!force || now.commits > begin.commits) {
                    return Ok(());
                }
                if now.failures != begin.failures {
                    return Err(super::tables::storage_error(&now.error));
                }
            }
            progress.changed().await.map_err(|_| gone())?;
        }
    }

    /// Wraps blocks that a transaction has reserved, so that they are freed if the command ends early.
    pub(crate) fn take_over(&self, runs: BlockRuns) -> Reservation {
        Reservation::new(&self.tables, runs)
    }

    /// Begins to write `data` to the blocks of a reservation.
    pub(crate) fn write_blocks(
        &self,
        reservation: Reservation,
        data: &volume::Data,
    ) -> BlockWrites {
        BlockWrites::begin(reservation, data, &self.committer)
    }

    /// Tells committer and loader to end. With a `reply`, the committer first commits all changes.
    pub(crate) fn stop(&self, reply: Option<oneshot::Sender<()>>) {
        // Ignore an error: the thread has ended already.
        let _ = self.committer.send(CommitJob::Stop(reply));
        let _ = self.loader.send(None);
    }
}

impl DriveCore {
    /// Ends the threads without making anything stable.
    pub(crate) fn end(&self) {
        self.begin_end();
        let begin = Instant::now();
        for thread in self.threads.lock().drain(..) {
            // The threads end at once, unless a call of the volume is at work. The volume may need this thread to
            // finish it, so the wait is bounded.
            while !thread.is_finished() && begin.elapsed() < MOST_JOIN {
                std::thread::sleep(Duration::from_micros(100));
            }
            if thread.is_finished() {
                // A thread that panicked has reported it.
                let _ = thread.join();
            }
        }
    }

    /// Ends the threads like [`DriveCore::end`], and waits until they have ended.
    pub(crate) async fn end_and_wait(&self) {
        self.begin_end();
        let threads = std::mem::take(&mut *self.threads.lock());
        let (ended, all_ended) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            for thread in threads {
                // A thread that panicked has reported it.
                let _ = thread.join();
            }
            drop(ended);
        });
        // The channel is closed without a message.
        let _ = all_ended.await;
    }

    fn begin_end(&self) {
        self.tables.disk.abandon();
        self.stop(None);
        drop(self.worker.lock().take());
    }
}

/// Returns the error of a step that needs no other work first.
fn failure(stop: Stop) -> ObjectError {
    match stop {
        Stop::Failed(error) => error,
        stop => unreachable!("{stop:?}"),
    }
}

/// Longest wait for the end of the threads.
const MOST_JOIN: Duration = Duration::from_secs(1);
/// Number of commits that a command waits for free blocks before the drive counts as full: readers may keep freed
/// blocks for a moment.
const MOST_WAITS: u32 = 4;
/// Number of freed blocks (64 MiB) above which a commit begins, since freed blocks can be used only after it.
const MOST_FREED: u64 = 16 << 10;
