//! The thread that reads rows from the tables which are not in memory.

use std::{
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
};

use object::ObjectError;
use tokio::{runtime::Handle, sync::oneshot};

use super::{
    committer::CommitJob,
    key::{self, Key},
    row_store::{LoadedRange, LoadedRows, Need},
    tables::{Tables, get_row, get_rows, storage_error},
};

/// A request for rows, with a channel for them; `None` ends the thread.
pub(crate) type LoadJob = Option<(Need, oneshot::Sender<Result<LoadedRows, ObjectError>>)>;

pub(crate) fn start(
    tables: Arc<Tables>,
    jobs: mpsc::Receiver<LoadJob>,
    committer: mpsc::Sender<CommitJob>,
    runtime: Option<Handle>,
) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("drive-loader".into()).spawn(move || {
        let _guard = runtime.as_ref().map(Handle::enter);
        while let Ok(Some((need, reply))) = jobs.recv() {
            let loaded = load(&tables, &need).or_else(|_| {
                reopen(&committer);
                load(&tables, &need)
            });
            // The caller may have gone.
            let _ = reply.send(loaded.map_err(storage_error));
        }
    })
}

/// Opens the tables again after an error: until then redb refuses every read, also when the disk works again. The
/// committer does that, because no commit may be at work meanwhile.
fn reopen(committer: &mpsc::Sender<CommitJob>) {
    let (reply, done) = mpsc::channel();
    if committer.send(CommitJob::Reopen(reply)).is_ok() {
        // A committer that has ended gives no answer. The next read tells the failure.
        let _ = done.recv();
    }
}

fn load(tables: &Tables, need: &Need) -> Result<LoadedRows, redb::Error> {
    let (generation, read) = {
        // Beginning to read can wait for a commit that waits for the disk. Threads of the runtime take the lock of the
        // state, and the disk may need them, so the lock is not held here.
        let generation = tables.state.lock().rows.generation;
        (generation, tables.read()?)
    };
    let mut loaded = LoadedRows { generation, ..LoadedRows::default() };
    match need {
        Need::Row(key) => {
            let row = get_row(&read, key)?;
            loaded.rows.insert(key.clone(), row);
        }
        Need::Range { start, end, limit } => {
            let rows = get_rows(&read, start, end, *limit)?;
            let (start, end, limit) = (start.clone(), end.clone(), *limit);
            loaded.ranges.push(LoadedRange { start, end, limit, rows });
        }
        Need::Group(group) => {
            let row = get_row(&read, &key::group(*group))?;
            let mut state = tables.state.lock();
            if state.rows.generation == generation {
                // The log of a drive that was just opened may have a newer row, and so may a group that has left memory.
                let changed = state.rows.changed(&key::group(*group)).cloned();
                state.groups.load(*group, changed.unwrap_or(row).as_ref());
            }
        }
    }
    remember(tables, &loaded);
    Ok(loaded)
}

/// Puts rows that were read from the tables into the cache, unless the tables may have changed since then.
fn remember(tables: &Tables, loaded: &LoadedRows) {
    let ranges = loaded.ranges.iter().flat_map(|range| &range.rows);
    let rows: Vec<(&Key, Option<&bytes::Bytes>)> = loaded
        .rows
        .iter()
        .map(|(key, row)| (key, row.as_ref()))
        .chain(ranges.map(|(key, row)| (key, Some(row))))
        .collect();
    let mut state = tables.state.lock();
    if state.rows.generation == loaded.generation {
        rows.into_iter().for_each(|(key, row)| state.rows.remember(key, row));
    }
}
