//! What every workload can do.

use std::path::Path;

use crate::{Error, Tool, WorkloadLocation, WorkloadResult};

/// A use of storage, with its settings.
pub trait Workload {
    /// Programs without which it does not run.
    fn needs(&self) -> Vec<Tool>;

    /// That its settings make sense. What they need is asked only then.
    ///
    /// # Errors
    /// [`Error::Settings`].
    fn check(&self) -> Result<(), Error>;

    /// That what it needs beside programs is on this machine.
    ///
    /// # Errors
    /// [`Error::Settings`], with what is missing and how it is had.
    fn ready(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Bytes that it takes up on its place, at most.
    fn space(&self) -> u64;

    /// Bytes of that which are there already, made by a run before that left them for the next.
    fn left_behind(&self, _place: &WorkloadLocation) -> u64 {
        0
    }

    /// Runs it to its end, and compares what it reads with what it wrote.
    ///
    /// # Errors
    /// What is missing or failed; [`Error::Wrong`] if the storage gave back something else.
    fn run(&self, run: &WorkloadRun<'_>) -> Result<WorkloadResult, Error>;
}

/// What a run is given.
#[derive(Clone, Copy)]
pub struct WorkloadRun<'a> {
    /// Where.
    pub place: &'a WorkloadLocation,
    /// A folder on this machine's own disk or memory for scripts and what is compared with. Its owner
    /// removes it.
    pub scratch: &'a Path,
    /// What all chance comes from that the workload itself has.
    pub seed: u64,
    /// Told now and then which share is done, 0 to 1.
    pub progress: &'a (dyn Fn(f64) + Sync),
}

impl WorkloadRun<'_> {
    /// The folder, for what runs only in one.
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
