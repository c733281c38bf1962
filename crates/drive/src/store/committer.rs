//! The thread that makes changes stable: one commit for all changes since the last one.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use object::Timestamp;
use tokio::{runtime::Handle, sync::oneshot};

use super::{
    block_on::block_on,
    disk::BLOCK,
    groups::{BlockRun, Groups},
    key,
    row_store::Rows,
    tables::{Tables, commit_rows, first_rows, identifiers_to_reserve, open_database},
    transaction::TAG_BYTES,
};

/// A job of the committer.
pub(crate) enum CommitJob {
    /// Make all changes stable; with `force` also if there are none.
    Commit { force: bool },
    /// Poll a future to its end: a write whose command was aborted.
    Finish(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// Remove every object. No command is at work. `tag` is the request tag of the command, or zeros.
    Format { now: Timestamp, tag: [u8; TAG_BYTES], reply: oneshot::Sender<Result<(), String>> },
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
        run(&tables, &jobs);
        drop(jobs);
        // Wake those who wait for a commit that does not come.
        tables.progress.send_modify(|progress| {
            progress.failures += 1;
            progress.error = "the object drive is closed".into();
        });
    })
}

fn run(tables: &Tables, jobs: &mpsc::Receiver<CommitJob>) {
    while let Ok(first) = jobs.recv() {
        let (mut wanted, mut forced) = (false, false);
        for job in std::iter::once(first).chain(jobs.try_iter()) {
            match job {
                CommitJob::Commit { force } => (wanted, forced) = (true, forced | force),
                CommitJob::Finish(future) => block_on(future),
                CommitJob::Format { now, tag, reply } => {
                    // The caller may have gone.
                    let _ = reply.send(format(tables, now, tag));
                }
                CommitJob::Stop(reply) => {
                    if reply.is_some() {
                        commit(tables, false);
                    }
                    // Dropping the database may write, so it must not happen on a thread of an async runtime.
                    drop(tables.database.lock().take());
                    if let Some(reply) = reply {
                        // The caller may have gone.
                        let _ = reply.send(());
                    }
                    return;
                }
            }
        }
        if wanted {
            commit(tables, forced);
        }
    }
}

/// A commit at work.
struct Frozen {
    rows: Arc<Rows>,
    version: u64,
    epoch: u64,
    reserved_id: u64,
}

fn commit(tables: &Tables, force: bool) {
    let Some(frozen) = freeze(tables, force) else { return };
    let result = reopen(tables).and_then(|()| {
        commit_rows(&tables.database, &frozen.rows, false).map_err(|e| e.to_string())
    });
    let mut state = tables.state.lock();
    match result {
        Ok(()) => {
            drop(frozen.rows);
            state.rows.committed();
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
            // A database that failed refuses everything until it is opened again.
            drop(tables.database.lock().take());
            drop(state);
            tables.progress.send_modify(|progress| {
                progress.failures += 1;
                progress.error = error;
            });
        }
    }
}

fn freeze(tables: &Tables, force: bool) -> Option<Frozen> {
    let mut state = tables.state.lock();
    let state = &mut *state;
    if state.rows.delta.is_empty() && state.groups.pending() == 0 && !force {
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
    Some(Frozen { rows: state.rows.freeze(), version: state.version, epoch, reserved_id })
}

/// Makes blocks usable that were freed by changes which are stable now, after discarding long runs of them.
fn settle(tables: &Tables) {
    let runs = {
        let mut state = tables.state.lock();
        let upto = state.epochs.quiet().min(state.committed_epoch);
        state.groups.settle(upto)
    };
    if tables.disk.volume().geometry().thin {
        for run in joined(&runs) {
            if run.count * BLOCK >= LEAST_DISCARD {
                // A discard that fails only leaves space allocated below.
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

fn format(tables: &Tables, now: Timestamp, tag: [u8; TAG_BYTES]) -> Result<(), String> {
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
        let records = state.rows.delta.iter().filter(|(key, _)| key::is_record(key));
        rows.extend(records.map(|(key, row)| (key.clone(), row.clone())));
    }
    if let Err(error) = commit_rows(&tables.database, &rows, true) {
        drop(tables.database.lock().take());
        return Err(error.to_string());
    }
    let (start, blocks) = (tables.layout.data_start, tables.layout.data_blocks);
    if tables.disk.volume().geometry().thin {
        // A discard that fails only leaves space allocated below.
        let _ = block_on(tables.disk.discard(start, blocks * BLOCK));
    }
    let mut state = tables.state.lock();
    state.rows.clear();
    state.groups = Groups::new(blocks, 0);
    state.counters = counters;
    Ok(())
}

/// Shorter runs are not discarded: the next data would overwrite them soon, and each discard costs a call.
const LEAST_DISCARD: u64 = 1 << 20;
