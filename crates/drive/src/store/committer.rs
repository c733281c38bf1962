//! The thread that makes changes stable: one commit for all changes since the last one. A commit is a record of the log,
//! or a *fold*, which writes the changes and all rows of the log to the tables. If only the log is full, its rows are
//! folded by a thread of their own, and commits go on meanwhile.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use object::Timestamp;
use tokio::{runtime::Handle, sync::oneshot};

use super::{
    block_on::block_on,
    change_log::ChangeLog,
    chunk::BlockEntry,
    disk::BLOCK,
    groups::{BlockRun, Groups},
    key,
    row_store::Rows,
    tables::{
        Tables, commit_rows, first_rows, free_replaced_pages, identifiers_to_reserve, is_full,
        open_database,
    },
    transaction::{Builds, TAG_BYTES},
    unsynced::UnsyncedBlocks,
};

/// A job of the committer.
pub(crate) enum CommitJob {
    /// Makes all changes stable. With `force`, commits even if no row has changed.
    Commit { force: bool },
    /// Polls a future until it ends: the writes of an aborted command.
    Finish(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// Removes every object. No command is at work. `tag` is the request tag of the command, or zeros.
    Format { now: Timestamp, tag: [u8; TAG_BYTES], reply: oneshot::Sender<Result<(), String>> },
    /// Opens the tables again, because a read of them has failed.
    Reopen(mpsc::Sender<()>),
    /// End; close the database in order if there is a reply.
    Stop(Option<oneshot::Sender<()>>),
}

pub(crate) fn start(
    tables: Arc<Tables>,
    jobs: mpsc::Receiver<CommitJob>,
    runtime: Option<Handle>,
) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("drive-committer".into()).spawn(move || {
        let _guard = runtime.as_ref().map(Handle::enter);
        let progress = tables.progress.clone();
        let mut committer = Committer { tables, runtime: runtime.clone(), fold: None };
        committer.run(&jobs);
        committer.end_fold();
        drop(jobs);
        // Wake those who wait for a commit that does not come.
        progress.send_modify(|progress| {
            progress.failures += 1;
            progress.error = "the object drive is closed".into();
        });
    })
}

struct Committer {
    tables: Arc<Tables>,
    runtime: Option<Handle>,
    /// The fold that runs beside commits. It returns true if it succeeded.
    fold: Option<JoinHandle<bool>>,
}

impl Committer {
    fn run(&mut self, jobs: &mpsc::Receiver<CommitJob>) {
        let mut has_records = false;
        loop {
            let first = match has_records {
                true => jobs.recv_timeout(IDLE),
                false => jobs.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
            };
            let first = match first {
                Ok(first) => first,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    self.commit(Demand::Fold);
                    // A fold that failed is tried again with the next commit.
                    has_records = false;
                    continue;
                }
            };
            let (mut wanted, mut forced) = (false, false);
            for job in std::iter::once(first).chain(jobs.try_iter()) {
                match job {
                    CommitJob::Commit { force } => (wanted, forced) = (true, forced | force),
                    CommitJob::Finish(future) => block_on(future),
                    CommitJob::Format { now, tag, reply } => {
                        self.end_fold();
                        // The caller may have gone.
                        let _ = reply.send(format(&self.tables, now, tag));
                    }
                    CommitJob::Reopen(reply) => {
                        self.end_fold();
                        drop(self.tables.database.lock().take());
                        // A failure is noticed by the next read or commit. The caller may have gone.
                        let _ = reopen(&self.tables);
                        let _ = reply.send(());
                    }
                    CommitJob::Stop(reply) => return self.stop(reply),
                }
            }
            if wanted {
                self.commit(if forced { Demand::Always } else { Demand::Changes });
            }
            let tables = &self.tables;
            has_records = tables.log.lock().has_records() && tables.mutation.folds_when_idle();
        }
    }

    fn stop(&mut self, reply: Option<oneshot::Sender<()>>) {
        if reply.is_some() {
            self.commit(Demand::Fold);
        }
        self.end_fold();
        // Dropping the database may write, so it must not happen on a thread of an async runtime.
        drop(self.tables.database.lock().take());
        if let Some(reply) = reply {
            // The caller may have gone.
            let _ = reply.send(());
        }
    }

    fn commit(&mut self, demand: Demand) {
        if self.fold.as_ref().is_some_and(JoinHandle::is_finished) {
            self.end_fold();
        }
        if self.tables.state.lock().has_format_failed {
            return note_failure(&self.tables, "FORMAT OSD has failed: repeat it".into());
        }
        let Some(frozen) = freeze(&self.tables, demand) else { return };
        let result = self.write(&frozen, demand);
        let tables = &self.tables;
        let mut state = tables.state.lock();
        match result {
            Ok(place) => {
                drop(frozen.rows);
                match place {
                    Committed::Log => state.rows.was_logged(),
                    Committed::Tables => state.rows.committed(),
                }
                state.counters.reserved_id = frozen.reserved_id;
                state.committed_epoch = frozen.epoch;
                drop(state);
                tables.progress.send_modify(|progress| {
                    progress.stable = frozen.version;
                    progress.commits += 1;
                });
                settle(tables);
            }
            Err(error) => {
                state.rows.thaw();
                drop(state);
                note_failure(tables, error);
            }
        }
    }

    /// Writes a record of the log. If it has no room, begins a fold beside commits, and a new half of the log. Folds at
    /// once if the record is too large even for that, or if there must be no record.
    fn write(&mut self, frozen: &Frozen, demand: Demand) -> Result<Committed, String> {
        let most = self.tables.most_changes() / 2;
        if demand != Demand::Fold && frozen.bytes <= most {
            let is_full = frozen.bytes + frozen.logged_bytes > most
                || self.tables.mutation.folds_after(self.tables.log.lock().records());
            if !is_full && let Some(result) = self.append(frozen) {
                return result;
            }
            self.end_fold();
            if self.begin_fold()
                && let Some(result) = self.append(frozen)
            {
                return result;
            }
        }
        self.end_fold();
        fold(&self.tables, &mut self.tables.log.lock()).map(|()| Committed::Tables)
    }

    /// Writes a record of the log. Returns `None` if there must be none, or if it has no room.
    fn append(&self, frozen: &Frozen) -> Option<Result<Committed, String>> {
        let tables = &self.tables;
        let mut log = tables.log.lock();
        let blocks = frozen.unsynced.as_deref();
        if log.must_fold() {
            return None;
        }
        let record = log.record(&frozen.rows, blocks.unwrap_or_default())?;
        let written = log.append(&tables.disk, record, blocks.is_none(), &tables.mutation);
        Some(written.map(|()| Committed::Log).map_err(|error| error.to_string()))
    }

    /// Begins to fold the rows of the log beside commits. Returns false if that cannot be done now. No other fold is at
    /// work.
    fn begin_fold(&mut self) -> bool {
        let mut log = self.tables.log.lock();
        if log.must_fold() || log.records() == 0 {
            return false;
        }
        let generation = log.begin_fold(&self.tables.mutation);
        let rows = self.tables.state.lock().rows.begin_fold();
        let (tables, runtime) = (Arc::clone(&self.tables), self.runtime.clone());
        let thread = thread::Builder::new().name("drive-fold".into()).spawn(move || {
            let _guard = runtime.as_ref().map(Handle::enter);
            let is_done = commit_rows(&tables.database, &rows, generation, false).is_ok();
            drop(rows);
            if is_done {
                tables.state.lock().rows.folded();
            }
            is_done
        });
        match thread {
            Ok(thread) => {
                log.begin_half();
                self.fold = Some(thread);
                true
            }
            Err(_) => {
                self.tables.state.lock().rows.unfold();
                false
            }
        }
    }

    /// Waits for the fold beside commits, if there is one. If it failed, the next commit is a fold, and says why.
    fn end_fold(&mut self) {
        let Some(fold) = self.fold.take() else { return };
        // A thread that panicked has not folded the rows.
        let is_done = fold.join().unwrap_or(false);
        if !is_done {
            // A database that failed refuses everything until it is opened again.
            drop(self.tables.database.lock().take());
            self.tables.state.lock().rows.unfold();
        }
        self.tables.log.lock().fold_ended(is_done);
    }
}

/// The reason for a commit.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Demand {
    /// Changes, if there are any.
    Changes,
    /// Also if nothing has changed.
    Always,
    /// The log is to be empty afterwards.
    Fold,
}

/// A commit at work.
struct Frozen {
    rows: Arc<Rows>,
    /// Memory of these rows.
    bytes: usize,
    /// Memory of the rows of the log.
    logged_bytes: usize,
    /// The data blocks that a record lists; `None`: too many.
    unsynced: Option<Vec<BlockEntry>>,
    version: u64,
    epoch: u64,
    reserved_id: u64,
}

/// Where a commit has put its rows.
enum Committed {
    Log,
    Tables,
}

/// Writes the frozen rows and all rows of the log to the tables.
fn fold(tables: &Tables, log: &mut ChangeLog) -> Result<(), String> {
    reopen(tables)?;
    let rows = tables.state.lock().rows.freeze_logged();
    commit_to_tables(tables, log, &rows, false)
}

fn commit_to_tables(
    tables: &Tables,
    log: &mut ChangeLog,
    rows: &Rows,
    clear: bool,
) -> Result<(), String> {
    let generation = log.begin_fold(&tables.mutation);
    let mut result = commit_rows(&tables.database, rows, generation, clear);
    if result.as_ref().is_err_and(is_full) {
        // The pages that the commit before has replaced are not free yet.
        drop(tables.database.lock().take());
        reopen(tables)?;
        result = free_replaced_pages(&tables.database)
            .and_then(|()| commit_rows(&tables.database, rows, generation, clear));
    }
    if let Err(error) = result {
        // A database that failed refuses everything until it is opened again.
        drop(tables.database.lock().take());
        return Err(error.to_string());
    }
    log.folded();
    Ok(())
}

fn note_failure(tables: &Tables, error: String) {
    tables.progress.send_modify(|progress| {
        progress.failures += 1;
        progress.error = error;
    });
}

fn freeze(tables: &Tables, demand: Demand) -> Option<Frozen> {
    let has_records = tables.log.lock().has_records();
    let mut state = tables.state.lock();
    let state = &mut *state;
    let is_changed = !state.rows.delta.is_empty() || state.groups.pending() > 0;
    let is_wanted = match demand {
        Demand::Changes => is_changed,
        Demand::Always => true,
        Demand::Fold => is_changed || has_records,
    };
    if !is_wanted {
        return None;
    }
    let epoch = state.epochs.epoch();
    state.epochs.advance();
    for (key, row) in state.groups.freeze(epoch) {
        state.rows.put(key, row);
    }
    let reserved_id = identifiers_to_reserve(&state.counters, &tables.mutation);
    let mut counters = state.counters;
    counters.reserved_id = reserved_id;
    state.rows.put(key::counters(), Some(counters.encode(state.groups.used)));
    Some(Frozen {
        bytes: state.rows.delta_bytes,
        logged_bytes: state.rows.logged_bytes(),
        rows: state.rows.freeze(),
        unsynced: state.unsynced.take(),
        version: state.version,
        epoch,
        reserved_id,
    })
}

/// Makes blocks usable again that were freed by changes which are stable now. Discards long runs of them first.
fn settle(tables: &Tables) {
    let runs = {
        let mut state = tables.state.lock();
        let upto = state.epochs.quiet().min(state.committed_epoch);
        state.groups.settle(upto)
    };
    if tables.disk.volume().geometry().thin {
        for run in joined(&runs) {
            if run.count * BLOCK >= LEAST_DISCARD {
                // Ignore a failed discard: it only leaves space of a thin volume allocated.
                let _ = block_on(tables.disk.discard(tables.offset(run.start), run.count * BLOCK));
            }
        }
    }
    tables.state.lock().groups.finish(&runs);
}

/// Returns the runs in ascending order, with adjacent ones joined.
fn joined(runs: &[BlockRun]) -> Vec<BlockRun> {
    let mut sorted = runs.to_vec();
    sorted.sort_unstable_by_key(|run| run.start);
    let mut joined: Vec<BlockRun> = Vec::new();
    for run in sorted {
        match joined.last_mut() {
            Some(last) if last.start + last.count == run.start => last.count += run.count,
            _ => joined.push(run),
        }
    }
    joined
}

fn reopen(tables: &Tables) -> Result<(), String> {
    if tables.database.lock().is_some() {
        return Ok(());
    }
    let database = open_database(&tables.disk, &tables.layout, &tables.mutation, false)
        .map_err(|error| error.to_string())?;
    *tables.database.lock() = Some(database);
    Ok(())
}

/// Removes every object, and lets commands in again.
fn format(tables: &Tables, now: Timestamp, tag: [u8; TAG_BYTES]) -> Result<(), String> {
    let done = remove_everything(tables, now, tag);
    let mut state = tables.state.lock();
    state.is_formatting = state.has_format_failed;
    done
}

fn remove_everything(tables: &Tables, now: Timestamp, tag: [u8; TAG_BYTES]) -> Result<(), String> {
    let mut log = tables.log.lock();
    reopen(tables)?;
    let (mut counters, mut rows) = first_rows(now);
    {
        let state = tables.state.lock();
        // Identifiers are not given a second time, and neither are the numbers of tagged commands. The results of all
        // tags are forgotten. The result of this command is kept with its attributes, in the next commit: after a crash
        // before that one, its outcome must be unknown.
        counters = super::transaction::Counters {
            next_content: state.counters.next_content,
            reserved_id: identifiers_to_reserve(&state.counters, &tables.mutation),
            next_id: state.counters.next_id,
            next_tag: state.counters.next_tag,
            oldest_tag: state.counters.next_tag,
            tag_horizon: state.counters.largest_tag.max(tag),
            largest_tag: state.counters.largest_tag.max(tag),
            ..counters
        };
        rows.insert(key::counters(), Some(counters.encode(0)));
        for layer in state.rows.layers() {
            let records = layer.iter().filter(|(key, _)| key::is_record(key));
            rows.extend(records.map(|(key, row)| (key.clone(), row.clone())));
        }
    }
    // An error of the last sync does not tell if the rows are gone.
    let note_unknown = |_: &String| tables.state.lock().has_format_failed = true;
    commit_to_tables(tables, &mut log, &rows, true).inspect_err(note_unknown)?;
    // The drive may have grown since it was opened.
    let (start, blocks) = (tables.layout.data_start, tables.state.lock().groups.blocks());
    if tables.disk.volume().geometry().thin {
        // Ignore a failed discard: it only leaves space of a thin volume allocated.
        let _ = block_on(tables.disk.discard(start, blocks * BLOCK));
    }
    let mut state = tables.state.lock();
    state.rows.clear();
    state.groups = Groups::new(state.groups.blocks(), 0);
    state.unsynced = UnsyncedBlocks::default();
    state.builds = Builds::default();
    state.counters = counters;
    Ok(())
}

/// A drive without commits for this long folds its log: the next start is quick then, and no block of data that decays
/// can look like one that was never written. Much longer than pauses between the commands of a client at work.
const IDLE: Duration = Duration::from_secs(1);
/// Shorter runs are not discarded: the next data would overwrite them soon, and each discard costs a call.
const LEAST_DISCARD: u64 = 1 << 20;
