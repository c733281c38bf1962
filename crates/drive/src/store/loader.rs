//! The thread that reads rows from the tables which are not in memory.

use std::{
    sync::{Arc, atomic::Ordering, mpsc},
    thread::{self, JoinHandle},
};

use bytes::Bytes;
use object::{ObjectError, ObjectType};
use tokio::{runtime::Handle, sync::oneshot};

use super::{
    committer::CommitJob,
    key,
    object_row::ObjectRow,
    row_store::{LoadedRange, LoadedRows, Need},
    tables::{Tables, TablesReader, storage_error},
};

/// A request for rows, with a channel for them; `None` ends the thread.
pub(crate) type LoadJob = Option<LoadRequest>;
type LoadRequest = (Need, oneshot::Sender<Result<LoadedRows, ObjectError>>);

pub(crate) fn start(
    tables: Arc<Tables>,
    jobs: mpsc::Receiver<LoadJob>,
    committer: mpsc::Sender<CommitJob>,
    runtime: Option<Handle>,
) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("drive-loader".into()).spawn(move || {
        let _guard = runtime.as_ref().map(Handle::enter);
        let mut is_open = true;
        while is_open {
            let batch = next_batch(&jobs, &mut is_open);
            match load_all(&tables, &batch) {
                // The callers may have gone.
                Ok(loaded) => batch.into_iter().zip(loaded).for_each(|((_, reply), rows)| {
                    let _ = reply.send(Ok(rows));
                }),
                // One unreadable row must not fail the commands that need other rows.
                Err(_) => {
                    batch.into_iter().for_each(|request| load_alone(&tables, request, &committer))
                }
            }
        }
    })
}

/// Waits for a request, and takes all that have arrived meanwhile, up to [`MOST_REQUESTS`]. Sets `is_open` to false if
/// the thread must end after these requests.
fn next_batch(jobs: &mpsc::Receiver<LoadJob>, is_open: &mut bool) -> Vec<LoadRequest> {
    let mut batch = Vec::new();
    let mut job = jobs.recv().unwrap_or(None);
    loop {
        let Some(request) = job else {
            *is_open = false;
            return batch;
        };
        // A range can have many rows. It ends the batch, so that the rows of one batch take little memory.
        let is_range = matches!(request.0, Need::Range { .. });
        batch.push(request);
        if is_range || batch.len() >= MOST_REQUESTS {
            return batch;
        }
        job = match jobs.try_recv() {
            Ok(next) => next,
            // The next call finds out whether the senders are gone.
            Err(_) => return batch,
        };
    }
}

/// Answers one request, and opens the tables again if they cannot be read.
fn load_alone(tables: &Tables, request: LoadRequest, committer: &mpsc::Sender<CommitJob>) {
    let request = [request];
    let loaded = load_all(tables, &request).or_else(|_| {
        reopen(committer);
        load_all(tables, &request)
    });
    let [(_, reply)] = request;
    let loaded = loaded.map(|mut rows| rows.pop().expect("one answer"));
    // The caller may have gone.
    let _ = reply.send(loaded.map_err(storage_error));
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

/// Loads the rows of all requests in one read transaction.
fn load_all(tables: &Tables, batch: &[LoadRequest]) -> Result<Vec<LoadedRows>, redb::Error> {
    if batch.is_empty() {
        return Ok(Vec::new());
    }
    // Beginning to read can wait for a commit that waits for the disk. Threads of the runtime take the lock of the
    // state, and the disk may need them, so the lock is not held here.
    let generation = tables.state.lock().rows.generation;
    let read = TablesReader::new(tables.read()?)?;
    tables.reads.fetch_add(1, Ordering::Relaxed);
    let loaded = batch.iter().map(|(need, _)| load(tables, &read, generation, need));
    let loaded = loaded.collect::<Result<Vec<_>, _>>()?;
    remember(tables, generation, &loaded);
    Ok(loaded)
}

fn load(
    tables: &Tables,
    read: &TablesReader,
    generation: u64,
    need: &Need,
) -> Result<LoadedRows, redb::Error> {
    let mut loaded = LoadedRows { generation, ..LoadedRows::default() };
    match need {
        Need::Row(key) => {
            let row = read.row(key)?;
            loaded.rows.insert(key.clone(), row);
        }
        Need::Object { key, chunk } => {
            let row = read.row(key)?;
            if let Some(content) = row.as_ref().and_then(content_of) {
                let key = key::chunk(content, *chunk);
                let row = read.row(&key)?;
                loaded.rows.insert(key, row);
            }
            loaded.rows.insert(key.clone(), row);
        }
        Need::Range { start, end, limit } => {
            let rows = read.rows(start, end, *limit)?;
            let (start, end, limit) = (start.clone(), end.clone(), *limit);
            loaded.ranges.push(LoadedRange { start, end, limit, rows });
        }
        Need::Group(group) => {
            let row = read.row(&key::group(*group))?;
            let mut state = tables.state.lock();
            if state.rows.generation == generation {
                // The log of a drive that was just opened may have a newer row, and so may a group that has left memory.
                let changed = state.rows.changed(&key::group(*group)).cloned();
                state.groups.load(*group, changed.unwrap_or(row).as_ref());
            }
        }
    }
    Ok(loaded)
}

/// Returns the number of a user object's content; `None` for other objects and for a damaged row.
fn content_of(row: &Bytes) -> Option<u64> {
    let row = ObjectRow::decode(row)?;
    (row.object_type == ObjectType::UserObject).then_some(row.content)
}

/// Puts rows that were read from the tables into the cache, unless the tables may have changed since then.
fn remember(tables: &Tables, generation: u64, loaded: &[LoadedRows]) {
    let mut state = tables.state.lock();
    if state.rows.generation != generation {
        return;
    }
    for loaded in loaded {
        loaded.rows.iter().for_each(|(key, row)| state.rows.remember(key, row.as_ref()));
        let ranges = loaded.ranges.iter().flat_map(|range| &range.rows);
        ranges.for_each(|(key, row)| state.rows.remember(key, Some(row)));
    }
}

/// Maximum number of requests in one batch: two sessions with 32 commands each. The rows of a batch take at most 4 MiB,
/// because the longest attribute has 64 KiB.
const MOST_REQUESTS: usize = 64;
