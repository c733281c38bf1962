//! Jobs of the worker: commands that were answered and are still at work, and tracking collections to remove.

use object::{ObjectAddress, ObjectError, Query};

use super::{
    drive_core::DriveCore,
    key,
    tracking::{self, Pending, WorkGuard},
    transaction::PAGE_ROWS,
    works::Progress,
};

/// A job of the worker.
pub(crate) enum BackgroundJob {
    /// Go on with a QUERY into a collection.
    Query(Box<QueryWork>),
    /// Remove a tracking collection whose creation did not end with GOOD.
    Undo(WorkGuard),
}

/// A QUERY whose matches become the members of a tracking collection.
pub(crate) struct QueryWork {
    pub(crate) guard: WorkGuard,
    /// The collection or partition whose user objects are compared.
    pub(crate) source: ObjectAddress,
    pub(crate) query: Query,
    pub(crate) progress: Progress,
}

impl DriveCore {
    /// Makes the next step of the job that waits longest. Returns false if there is no job.
    pub(crate) async fn job_step(&self) -> bool {
        let job = self.jobs.lock().as_mut().and_then(|jobs| jobs.pop_front());
        let Some(job) = job else { return false };
        let rest = self.step(job).await;
        // The lock must be free when a job of a closed drive is dropped.
        let left_over = match (&mut *self.jobs.lock(), rest) {
            (Some(jobs), Some(rest)) => {
                jobs.push_back(rest);
                None
            }
            (_, rest) => rest,
        };
        drop(left_over);
        true
    }

    /// Makes the next step of a job. Returns the rest of the job.
    async fn step(&self, job: BackgroundJob) -> Option<BackgroundJob> {
        match job {
            BackgroundJob::Query(mut work) => {
                let result = self.query_step(&mut work).await;
                let is_closed = self.jobs.lock().is_none();
                match result {
                    Ok(false) => return Some(BackgroundJob::Query(work)),
                    // The error may come from closing the drive, which goes on with the command after its next start.
                    Err(_) if is_closed => {}
                    result => self.end_work(work.guard.id, &result.map(drop)).await,
                }
                None
            }
            BackgroundJob::Undo(guard) => match self.undo_step(guard.id.collection).await {
                Ok(false) => Some(BackgroundJob::Undo(guard)),
                // After an error, the next start of the drive tries again.
                Ok(true) | Err(_) => None,
            },
        }
    }

    /// Gives the worker the commands that the last stop of the drive has interrupted.
    pub(crate) async fn resume(&self) -> Result<(), ObjectError> {
        let (mut start, end) = (key::pending(ObjectAddress::ROOT), key::pending_end());
        loop {
            let page = self.run(|transaction| transaction.page(&start, &end, PAGE_ROWS)).await?;
            for (row_key, row) in &page.rows {
                let collection = key::pending_collection(row_key);
                let damaged = || {
                    ObjectError::Storage(format!("the pending command of {collection} is damaged"))
                };
                let pending = Pending::decode(row).ok_or_else(damaged)?;
                let resumed = self
                    .run(|transaction| tracking::resume(transaction, collection, &pending))
                    .await?;
                let Some((id, progress)) = resumed else { continue };
                let guard = WorkGuard::new(&self.tables, id);
                self.add_job(match pending {
                    Pending::Query { source, query } => {
                        BackgroundJob::Query(Box::new(QueryWork { guard, source, query, progress }))
                    }
                    Pending::Creation => BackgroundJob::Undo(guard),
                });
            }
            match page.next {
                Some(next) => start = next,
                None => return Ok(()),
            }
        }
    }
}

/// Commands that work on after their answer. More QUERY commands with IMMED_TR are answered at their end. 64: the
/// worker makes a step of each in turn, and reads their queries into memory at a start.
pub(crate) const MOST_BACKGROUND: usize = 64;
/// Objects that one step of a command on many objects looks at: about a millisecond of work.
pub(crate) const STEP_OBJECTS: usize = 64;
