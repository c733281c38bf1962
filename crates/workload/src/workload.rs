//! The interface of all workloads.

use std::path::Path;

use crate::{Error, Tool, WorkloadLocation, WorkloadResult};

/// A workload with its settings.
pub trait Workload {
    /// Programs that it needs.
    fn needs(&self) -> Vec<Tool>;

    /// Checks its settings. What they need on this machine is checked later.
    ///
    /// # Errors
    /// [`Error::Settings`].
    fn check(&self) -> Result<(), Error>;

    /// Checks that what it needs besides programs is on this machine.
    ///
    /// # Errors
    /// [`Error::Settings`], with what is missing and how to get it.
    fn ready(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Bytes that it needs on its place at most.
    fn space(&self) -> u64;

    /// Bytes of these that an earlier run has left there for the next one.
    fn left_behind(&self, _place: &WorkloadLocation) -> u64 {
        0
    }

    /// Runs it to its end, and compares what it reads with what it wrote.
    ///
    /// # Errors
    /// What is missing or failed; [`Error::Wrong`] if the storage returned other data.
    fn run(&self, run: &WorkloadRun<'_>) -> Result<WorkloadResult, Error>;
}

/// What a run gets.
#[derive(Clone, Copy)]
pub struct WorkloadRun<'a> {
    /// The place.
    pub place: &'a WorkloadLocation,
    /// A folder on this machine's own disk or memory for scripts and expected content. The caller removes it.
    pub scratch: &'a Path,
    /// The source of all random choices of the workload itself.
    pub seed: u64,
    /// Called now and then with the share that is done, 0 to 1.
    pub progress: &'a (dyn Fn(f64) + Sync),
}

impl WorkloadRun<'_> {
    /// Returns the folder, for workloads that need one.
    pub(crate) fn folder(&self, workload: &'static str) -> Result<&Path, Error> {
        match self.place {
            WorkloadLocation::Folder(path) if path.is_dir() => Ok(path),
            place => {
                let wanted = "a folder of a mounted file system";
                Err(Error::Place { workload, wanted, place: place.to_string() })
            }
        }
    }
}
