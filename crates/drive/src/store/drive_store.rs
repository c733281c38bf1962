//! Opens and closes an object drive, and gives the check of capabilities the facts about its objects.

use std::sync::{Arc, mpsc};

use bytes::Bytes;
use object::{ObjectAddress, ObjectError, ObjectRequest, ObjectResult, ObjectStore};
use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::oneshot};
use volume::{Reply, Stack};

use super::{
    build::find_interrupted,
    committer,
    disk::{BLOCK, DriveDisk},
    drive_core::DriveCore,
    key, loader,
    mutant::DriveMutation,
    object_rows::find,
    options::{DriveOptions, DriveStatistics, GuardFacts, OpenError},
    scrubbing::ScrubReport,
    space::check_space,
    superblock::{DriveState, Found, Superblock, identity_of},
    tables::{Tables, commit_rows, first_rows, open_database},
    transaction::Replacement,
    worker,
};

/// An object store that keeps objects on a volume.
pub struct DriveStore {
    core: Arc<DriveCore>,
}

impl DriveStore {
    /// Opens the drive on `volume`. A volume of zeros is formatted.
    ///
    /// # Errors
    /// The volume has other content than a drive, is too small, has lost its end, or cannot be read.
    pub async fn open(volume: Stack, options: DriveOptions) -> Result<Self, OpenError> {
        Self::open_with(volume, options, DriveMutation::default()).await
    }

    /// Opens the drive like [`DriveStore::open`], with a deliberate fault.
    ///
    /// # Errors
    /// See [`DriveStore::open`].
    pub async fn open_with(
        volume: Stack,
        options: DriveOptions,
        mutation: DriveMutation,
    ) -> Result<Self, OpenError> {
        let disk = Arc::new(DriveDisk::new(volume));
        let mutation = Arc::new(mutation);
        let mut superblock = match Superblock::read(&disk).await? {
            Found::Drive { mut superblock, is_damaged } => {
                superblock.check_identity(&options.identity.system_id)?;
                // The lost copy may have had the next boot epoch.
                superblock.advance(is_damaged.into());
                // The superblock with the added blocks is stable before the first command is performed.
                superblock.grow(disk.bytes());
                superblock
            }
            Found::Zeros => {
                let identity = identity_of(&options.identity.system_id);
                let mut planned = Superblock::plan(disk.bytes(), identity)?;
                planned.write(&disk, &mutation).await?;
                planned
            }
        };
        let is_new = superblock.state == DriveState::Formatting;
        let now = options.clock.now();
        let (opened, result) = oneshot::channel();
        let runtime = Handle::try_current().ok();
        let (its_disk, its_layout, its_mutation) =
            (Arc::clone(&disk), superblock.clone(), Arc::clone(&mutation));
        let its_runtime = runtime.clone();
        // Dropping this task must end the thread's changes of the volume.
        let mut opening = Opening(Some(disk));
        std::thread::spawn(move || {
            let _guard = its_runtime.as_ref().map(Handle::enter);
            let tables = open_tables(its_disk, its_layout, its_mutation, is_new, now);
            // Ignore an error: the task that opens the drive may have been dropped.
            let _ = opened.send(tables);
        });
        let ended = || OpenError::Tables("the thread that opened them ended".into());
        let tables = Arc::new(result.await.map_err(|_| ended())??);
        superblock.state = DriveState::InUse;
        superblock.advance(1);
        let store = Self { core: start(tables, options, superblock, runtime)? };
        opening.0 = None;
        if let Err(error) = store.make_ready().await {
            // The caller may open the drive again at once. The threads must have ended then: the tables write to the
            // volume when they are dropped.
            store.core.end_and_wait().await;
            return Err(error);
        }
        Ok(store)
    }

    /// Makes the new boot epoch and the rows of the log stable, and goes on with work that a crash has interrupted.
    async fn make_ready(&self) -> Result<(), OpenError> {
        let tables = &self.core.tables;
        self.core.superblock.lock().await.write(&tables.disk, &tables.mutation).await?;
        let failed = |error: ObjectError| OpenError::Tables(error.to_string());
        self.core.commit(true).await.map_err(failed)?;
        self.load_summaries().await.map_err(failed)?;
        self.find_builds().await.map_err(failed)?;
        self.finish_removals().await.map_err(failed)?;
        self.core.resume().await.map_err(failed)?;
        self.core.wake_worker();
        Ok(())
    }

    /// Loads the number of used blocks of all groups: 16 KiB for each TiB.
    async fn load_summaries(&self) -> Result<(), ObjectError> {
        let (mut next, end) = (Some(key::summary(0)), key::summaries_end());
        while let Some(start) = next {
            let page = self.core.run(|transaction| transaction.page(&start, &end, 64)).await?;
            let groups = &mut self.core.tables.state.lock().groups;
            for (row_key, row) in page.rows {
                groups.load_summary(key::last_number(&row_key), &row);
            }
            next = page.next;
        }
        Ok(())
    }

    /// Hides partitions whose copying a crash has interrupted, and has the worker remove them. Finishes the replacement of
    /// a partition.
    async fn find_builds(&self) -> Result<(), ObjectError> {
        let (start, end) = (key::build(0), key::builds_end());
        let page = self.core.run(|transaction| transaction.page(&start, &end, 1024)).await?;
        for (row_key, _) in page.rows {
            let copy = key::last_number(&row_key);
            let build = self.core.run(|transaction| find_interrupted(transaction, copy)).await?;
            let builds = &mut self.core.tables.state.lock().builds;
            match build.stage {
                0 => builds.failed.push((copy, 0)),
                _ => {
                    let partition = build.replaces;
                    builds.replacement = Some(Replacement { copy, partition, next: 0 });
                }
            }
        }
        while self.core.tables.state.lock().builds.replacement.is_some() {
            self.core.work().await?;
        }
        self.core.wake_worker();
        Ok(())
    }

    /// Goes on with removals of partitions that a crash has interrupted.
    async fn finish_removals(&self) -> Result<(), ObjectError> {
        let (start, end) = (key::trash(0), key::trash_end());
        let page = self.core.run(|transaction| transaction.page(&start, &end, 1024)).await?;
        for (row_key, _) in page.rows {
            self.core.empty_partition(key::last_number(&row_key)).await?;
        }
        Ok(())
    }

    /// Makes all changes stable and closes the tables. Later commands fail.
    ///
    /// # Errors
    /// The volume failed.
    pub async fn close(&self) -> Result<(), ObjectError> {
        // The worker makes no further step of a job. The drive goes on with the jobs after its next start.
        drop(self.core.jobs.lock().take());
        self.core.commit(false).await?;
        let (reply, done) = oneshot::channel();
        self.core.stop(Some(reply));
        let closed = |_| ObjectError::Storage("the object drive is closed".into());
        done.await.map_err(closed)?;
        let mut superblock = self.core.superblock.lock().await;
        superblock.state = DriveState::Closed;
        let tables = &self.core.tables;
        superblock
            .write(&tables.disk, &tables.mutation)
            .await
            .map_err(|error| ObjectError::Storage(error.to_string()))
    }

    /// Frees all blocks that removed, cleared and shortened objects have left. Without this call, a background thread
    /// frees them.
    pub fn finish_freeing(&self) -> Reply<'_, Result<(), ObjectError>> {
        Reply::new(async move {
            loop {
                self.core.admit_change().await?;
                if !self.core.work().await? {
                    return Ok(());
                }
            }
        })
    }

    /// Adds the end of the volume, which has grown, to the drive. Returns the bytes of all blocks of data.
    ///
    /// # Errors
    /// The volume failed. The drive keeps its size.
    pub async fn grow(&self) -> Result<u64, ObjectError> {
        let mut superblock = self.core.superblock.lock().await;
        let tables = &self.core.tables;
        let mut grown = superblock.clone();
        if grown.grow(tables.disk.bytes()) {
            let written = grown.write(&tables.disk, &tables.mutation).await;
            written.map_err(|error| ObjectError::Storage(error.to_string()))?;
            // Stable now: no map refers to an added block before.
            tables.state.lock().groups.grow(grown.data_blocks);
            *superblock = grown;
        }
        Ok(superblock.data_blocks * BLOCK)
    }

    /// Reads every block of all objects and compares it with its checksum.
    pub fn scrub(&self) -> Reply<'_, Result<ScrubReport, ObjectError>> {
        Reply::new(self.core.scrub(ObjectAddress::ROOT))
    }

    /// Fails if `command` would fail for lack of space. Call this before its data is requested.
    pub fn admit(&self, command: object::Command) -> Reply<'_, Result<(), ObjectError>> {
        Reply::new(
            async move { self.core.run(|transaction| check_space(transaction, &command)).await },
        )
    }

    /// Returns the type, the creation time and the policy access tag of an object, with which a capability is compared.
    pub fn guard_facts(&self, object: ObjectAddress) -> Reply<'_, Result<GuardFacts, ObjectError>> {
        Reply::new(async move {
            let row = self.core.run(|transaction| find(transaction, object)).await?;
            Ok(GuardFacts {
                object_type: row.object_type,
                created: row.times.created,
                policy_tag: row.policy_tag,
            })
        })
    }

    /// Returns the value of a named record, such as the clock's mark; `None` if it was never written.
    pub fn record(&self, name: &str) -> Reply<'_, Result<Option<Bytes>, ObjectError>> {
        let key = key::record(name);
        Reply::new(async move { self.core.run(|transaction| transaction.get(&key)).await })
    }

    /// Replaces the value of a named record. The value is stable when the reply is ready. FORMAT OSD keeps named
    /// records.
    pub fn put_record(&self, name: &str, value: Bytes) -> Reply<'_, Result<(), ObjectError>> {
        let key = key::record(name);
        Reply::new(async move {
            self.core.run(|transaction| transaction.put(key.clone(), Some(value.clone()))).await?;
            self.core.commit(false).await
        })
    }

    /// Returns a number that increases each time that the drive is opened.
    #[must_use]
    pub fn boot_epoch(&self) -> u16 {
        self.core.boot_epoch
    }

    /// Returns true if a capability for this boot epoch is valid. After 65,535 starts boot epochs come again, so a
    /// capability of an earlier start could not be told from one of this start: then none is valid.
    #[must_use]
    pub fn accepts_boot_epoch(&self, boot_epoch: u16) -> bool {
        !self.core.has_wrapped && boot_epoch == self.core.boot_epoch
    }

    #[must_use]
    pub fn statistics(&self) -> DriveStatistics {
        use std::sync::atomic::Ordering;
        let state = self.core.tables.state.lock();
        DriveStatistics {
            objects: state.counters.objects,
            partitions: state.counters.partitions,
            used_bytes: state.groups.used * BLOCK,
            capacity_bytes: state.groups.blocks() * BLOCK,
            commits: self.core.tables.progress.borrow().commits,
            repaired_blocks: self.core.repaired.load(Ordering::Relaxed),
            damaged_blocks: self.core.damaged.load(Ordering::Relaxed),
        }
    }
}

/// The disk of a drive whose threads are not under the control of a [`DriveStore`] yet.
struct Opening(Option<Arc<DriveDisk>>);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.iter().for_each(|disk| disk.abandon());
    }
}

impl Drop for DriveStore {
    fn drop(&mut self) {
        self.core.end();
    }
}

impl ObjectStore for DriveStore {
    fn perform(&self, request: ObjectRequest) -> Reply<'_, ObjectResult> {
        Reply::new(self.core.perform(request))
    }
}

/// Opens the tables of the drive, and creates them if the drive is new. Blocks the thread.
fn open_tables(
    disk: Arc<DriveDisk>,
    layout: Superblock,
    mutation: Arc<DriveMutation>,
    is_new: bool,
    now: object::Timestamp,
) -> Result<Tables, OpenError> {
    let database = open_database(&disk, &layout, &mutation, is_new)?;
    let database = Mutex::new(Some(database));
    if is_new {
        let (_, rows) = first_rows(now);
        commit_rows(&database, &rows, first_generation()?, false)
            .map_err(|error| OpenError::Tables(error.to_string()))?;
    }
    let database = database.into_inner().expect("it was just opened");
    Tables::new(disk, layout, mutation, database)
}

/// Returns the generation of a new log: a random number, so that records of an earlier drive on this volume do not count.
fn first_generation() -> Result<u64, OpenError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| OpenError::Tables(error.to_string()))?;
    Ok(u64::from_le_bytes(bytes))
}

fn start(
    tables: Arc<Tables>,
    options: DriveOptions,
    superblock: Superblock,
    runtime: Option<Handle>,
) -> Result<Arc<DriveCore>, OpenError> {
    let (load, load_jobs) = mpsc::channel();
    let (commit, commit_jobs) = mpsc::channel();
    let (wake, wakes) = mpsc::sync_channel(1);
    tables.state.lock().step_chunks = options.limits.step_chunks.max(1);
    let failed = |error: std::io::Error| OpenError::Tables(error.to_string());
    let threads = vec![
        loader::start(Arc::clone(&tables), load_jobs, commit.clone(), runtime.clone())
            .map_err(failed)?,
        committer::start(Arc::clone(&tables), commit_jobs, runtime.clone()).map_err(failed)?,
    ];
    let core = Arc::new(DriveCore {
        tables,
        options,
        boot_epoch: superblock.boot_epoch,
        has_wrapped: superblock.has_wrapped,
        superblock: tokio::sync::Mutex::new(superblock),
        loader: load,
        committer: commit,
        worker: Mutex::new(Some(wake)),
        jobs: Mutex::new(Some(Default::default())),
        builds: tokio::sync::Mutex::new(()),
        threads: Mutex::new(threads),
        appends: (0..APPEND_LOCKS).map(|_| tokio::sync::Mutex::new(())).collect(),
        repaired: Default::default(),
        damaged: Default::default(),
    });
    let worker = worker::start(Arc::downgrade(&core), wakes, runtime).map_err(failed)?;
    core.threads.lock().push(worker);
    Ok(core)
}

/// Number of locks for APPEND: many more than the commands at work at once, so that appends to different objects seldom
/// share a lock.
const APPEND_LOCKS: usize = 256;

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use object::{Command, Continuation, ReplyData, Timestamp};
    use volume::{Data, Geometry, MemVolume};

    use super::*;
    use crate::store::{
        chunk::{BlockEntry, ChunkRow},
        options::{Clock, DriveIdentity, Limits},
        row_store::Need,
    };

    struct Stopped;

    impl Clock for Stopped {
        fn now(&self) -> Timestamp {
            Timestamp::from_ms(1_700_000_000_000)
        }
    }

    fn options() -> DriveOptions {
        let identity = DriveIdentity {
            system_id: *b"f181000e464f52454241",
            vendor: "FOREBAY".into(),
            product: "object drive".into(),
            revision: "1".into(),
            serial: "42".into(),
        };
        DriveOptions { limits: Limits::default(), identity, clock: Arc::new(Stopped) }
    }

    #[tokio::test]
    async fn an_idle_drive_folds_its_log() {
        let volume: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(1 << 15)));
        let store = DriveStore::open(volume, options()).await.unwrap();
        let tables = &store.core.tables;
        let mut progress = tables.progress.subscribe();
        store.put_record("name", Bytes::from_static(b"value")).await.unwrap();
        progress.borrow_and_update();
        assert_eq!(tables.log.lock().records(), 1);
        progress.changed().await.unwrap();
        assert_eq!(tables.log.lock().records(), 0);
    }

    async fn perform(store: &DriveStore, command: Command) -> ObjectResult {
        let length = match command {
            Command::Write { length, .. } | Command::CreateAndWrite { length, .. } => length,
            _ => 0,
        };
        let data = Data::from(vec![7; length as usize]);
        store.perform(ObjectRequest::new(command).with_data(data)).await
    }

    async fn create(store: &DriveStore, partition: u64) -> ObjectAddress {
        let (requested, length, start) = (0, BLOCK, 0);
        let command = Command::CreateAndWrite { partition, requested, length, start };
        perform(store, command).await.unwrap().current.object
    }

    /// Makes a row of the object refer to `block`, as a damaged or hostile disk could.
    async fn refer(store: &DriveStore, object: ObjectAddress, chunk: u64, block: u64) {
        let put = |transaction: &mut crate::store::transaction::Transaction<'_>| {
            let content = find(transaction, object)?.content;
            let mut row = ChunkRow::new(None);
            row.set(0, Some(BlockEntry { block, crc: 1 }));
            transaction.put(key::chunk(content, chunk), row.finish())
        };
        store.core.run(put).await.unwrap();
    }

    #[tokio::test]
    async fn a_row_that_refers_to_an_impossible_block_makes_its_object_fail_and_no_other() {
        let volume: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(1 << 15)));
        let store = DriveStore::open(volume, options()).await.unwrap();
        let made = perform(&store, Command::CreatePartition { requested: 0 }).await.unwrap();
        let partition = made.current.object.partition;
        let data_blocks = store.core.tables.layout.data_blocks;
        for block in [data_blocks, u64::MAX / BLOCK, u64::MAX / BLOCK + 2, u64::MAX - 1] {
            let object = create(&store, partition).await;
            refer(&store, object, 0, block).await;
            let (length, start) = (BLOCK, 0);
            for command in [
                Command::Read { object, length, start },
                Command::Write { object, length, start },
                Command::Clear { object, length, start },
                Command::Remove { object },
            ] {
                let refused = perform(&store, command).await;
                assert!(refused.is_err(), "{block}: {command:?}");
            }
            let other = create(&store, partition).await;
            perform(&store, Command::Remove { object: other }).await.unwrap();
            store.core.commit(false).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_row_of_an_impossible_chunk_is_no_difference_of_maps() {
        let volume: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(1 << 15)));
        let store = DriveStore::open(volume, options()).await.unwrap();
        let made = perform(&store, Command::CreatePartition { requested: 0 }).await.unwrap();
        let partition = made.current.object.partition;
        let [object, other] = [create(&store, partition).await, create(&store, partition).await];
        let (allocation_length, start) = (1 << 16, 0);
        let command = Command::ReadMapsAndCompare { object, allocation_length, start };
        let request = ObjectRequest {
            continuation: Continuation::UserObject(other),
            ..ObjectRequest::new(command)
        };
        let compare = async || match store.perform(request.clone()).await.unwrap().data {
            object::ReplyData::Map(runs) => runs,
            other => panic!("{other:?}"),
        };
        let before = compare().await;
        for chunk in [1 << 50, u64::MAX - 1] {
            refer(&store, object, chunk, 1).await;
            assert_eq!(compare().await, before);
        }
    }

    /// Opens a drive with one object, whose rows are not in memory. Its worker has ended, so that only commands load
    /// rows.
    async fn open_cold() -> (DriveStore, ObjectAddress) {
        let volume: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(1 << 15)));
        let store = DriveStore::open(volume.clone(), options()).await.unwrap();
        let made = perform(&store, Command::CreatePartition { requested: 0 }).await.unwrap();
        let object = create(&store, made.current.object.partition).await;
        store.close().await.unwrap();
        drop(store);
        let store = DriveStore::open(volume, options()).await.unwrap();
        drop(store.core.worker.lock().take());
        store.core.threads.lock().pop().unwrap().join().unwrap();
        (store, object)
    }

    #[tokio::test]
    async fn a_read_loads_the_rows_of_its_object_and_chunk_at_once() {
        let (store, object) = open_cold().await;
        let reads = &store.core.tables.reads;
        let before = reads.load(Ordering::Relaxed);
        let read = ObjectRequest::new(Command::Read { object, length: 4096, start: 0 });
        let reply = store.perform(read).await.unwrap();
        let ReplyData::Bytes(data) = reply.data else { panic!("READ returns bytes") };
        assert_eq!(data.into_bytes(), vec![7; 4096]);
        assert_eq!(reads.load(Ordering::Relaxed) - before, 1);
    }

    #[tokio::test]
    async fn one_read_transaction_serves_all_requests_for_rows_that_wait() {
        let (store, object) = open_cold().await;
        let tables = &store.core.tables;
        let before = tables.reads.load(Ordering::Relaxed);
        let (sender, jobs) = mpsc::channel();
        let keys = [key::object(object), key::object(ObjectAddress::new(1, 1))];
        let answers = keys.each_ref().map(|key| {
            let (reply, answer) = oneshot::channel();
            sender.send(Some((Need::Row(key.clone()), reply))).unwrap();
            answer
        });
        sender.send(None).unwrap();
        let committer = store.core.committer.clone();
        loader::start(Arc::clone(tables), jobs, committer, None).unwrap().join().unwrap();
        let mut found = Vec::new();
        for (answer, key) in answers.into_iter().zip(&keys) {
            found.push(answer.await.unwrap().unwrap().rows[key].is_some());
        }
        assert_eq!(found, [true, false]);
        assert_eq!(tables.reads.load(Ordering::Relaxed) - before, 1);
    }
}
