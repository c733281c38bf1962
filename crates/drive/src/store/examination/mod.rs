//! Examines the volume of a drive that is not served, without changing it.
//!
//! The drive is opened over a layer that keeps all writes in memory, so that the recovery after a crash runs as it does
//! at a start. Then all rows are compared with each other, and all data with its checksums.

mod report;
mod rows;
mod structure;
mod unfinished;
mod blocks;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::{runtime::Handle, sync::oneshot};
use volume::{OverlayVolume, Stack};

pub use blocks::ExaminationProgress;
pub use report::{DriveExamination, DriveFinding, DriveFindingKind};

use self::{blocks::BlockExamination, rows::ExaminedRows, structure::examine_rows};
use super::{
    disk::DriveDisk,
    drive_store::DriveStore,
    mutant::DriveMutation,
    options::{DriveOptions, OpenError},
    superblock::{DriveState, Found, Superblock},
    tables::open_database,
};

/// Examines the object drive on `volume` without changing it. Returns `None` for a volume of zeros. Damage is no error,
/// but a part of the report.
///
/// # Errors
/// The volume is not a drive, is another drive or cannot be read, or its recovery needs too much memory.
pub async fn examine_drive(
    volume: Stack,
    options: DriveOptions,
    progress: ExaminationProgress,
) -> Result<Option<DriveExamination>, OpenError> {
    let overlay = Arc::new(OverlayVolume::new(volume, MOST_CHANGES));
    let stack: Stack = Arc::clone(&overlay) as _;
    let (superblock, is_damaged) =
        match Superblock::read(&DriveDisk::new(Arc::clone(&stack))).await? {
            Found::Zeros => return Ok(None),
            Found::Drive { superblock, is_damaged } => (superblock, is_damaged),
        };
    superblock.check_identity(&options.identity.system_id)?;
    let mut report = DriveExamination::default();
    if is_damaged {
        let note = "one of the two superblocks is damaged: the next start or end writes it";
        report.notes.push(note.to_owned());
    }
    match superblock.state {
        DriveState::Closed => {}
        DriveState::InUse => report.notes.push("the drive was not closed".to_owned()),
        DriveState::Formatting => {
            report.notes.push("the next start finishes the format of the drive".to_owned());
            return Ok(Some(report));
        }
    }
    if let Err(problem) = examine_tables(&stack, options, &mut report, progress).await {
        if overlay.was_refused() {
            let reason = "the recovery of the drive needs more than 256 MiB of memory";
            return Err(OpenError::Volume(volume::Error::Device(reason.into())));
        }
        report.find(DriveFindingKind::Tables, problem);
    }
    Ok(Some(report))
}

/// Recovers the tables, and examines them and the data. An error describes damage that ends the examination.
async fn examine_tables(
    stack: &Stack,
    options: DriveOptions,
    report: &mut DriveExamination,
    progress: ExaminationProgress,
) -> Result<(), String> {
    let checked = on_thread(stack, |database, _, _| {
        let is_intact = database.check_integrity().map_err(|error| error.to_string())?;
        is_intact.then_some(()).ok_or_else(|| "pages of the tables are damaged".to_owned())
    });
    checked.await?;
    // Open and close the drive, so that it finishes interrupted work and writes all changes to the tables.
    let store = DriveStore::open(Arc::clone(stack), options).await;
    let store = store.map_err(|error| error.to_string())?;
    // Go on after a failure, which may be due to one damaged row: it must not hide other damage.
    let finished = store.finish_freeing().await;
    store.close().await.map_err(|error| error.to_string())?;
    drop(store);
    let mut examined = std::mem::take(report);
    if let Err(error) = finished {
        examined.find(DriveFindingKind::Tables, error.to_string());
    }
    *report = on_thread(stack, move |database, disk, layout| {
        let report = &mut examined;
        let rows = ExaminedRows::new(database).map_err(|error| error.to_string())?;
        let found = examine_rows(&rows, report).map_err(|error| error.to_string())?;
        let used = found.map_or(0, |(_, used)| used);
        let blocks = BlockExamination { rows: &rows, report, disk, layout, used, progress };
        blocks.run().map_err(|error| error.to_string())?;
        Ok(examined)
    })
    .await?;
    Ok(())
}

/// Calls `work` with the tables on a thread of its own, because the tables block. A panic of that thread counts as
/// damage.
async fn on_thread<T: Send + 'static>(
    stack: &Stack,
    work: impl FnOnce(&mut redb::Database, Arc<DriveDisk>, &Superblock) -> Result<T, String>
    + Send
    + 'static,
) -> Result<T, String> {
    let disk = Arc::new(DriveDisk::new(Arc::clone(stack)));
    let layout = match Superblock::read(&disk).await.map_err(|error| error.to_string())? {
        Found::Drive { superblock, .. } => superblock,
        Found::Zeros => return Err("the superblocks are gone".to_owned()),
    };
    let (reply, result) = oneshot::channel();
    let runtime = Handle::try_current().ok();
    std::thread::spawn(move || {
        let _guard = runtime.as_ref().map(Handle::enter);
        let opened = open_database(&disk, &layout, &Arc::new(DriveMutation::default()), false);
        let done = match opened {
            Ok(mut database) => work(&mut database, disk, &layout),
            Err(error) => Err(error.to_string()),
        };
        // Ignore an error: the task that examines may have been dropped.
        let _ = reply.send(done);
    });
    result.await.unwrap_or_else(|_| Err("the tables cannot be read".to_owned()))
}

/// Maximum number of bytes that the recovery may write to memory. The tables of a drive of 1 TiB repair less than this.
const MOST_CHANGES: usize = 256 << 20;
