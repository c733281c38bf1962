//! The trait that all workloads implement, and the environment of a run.

use std::path::Path;

use crate::{Error, Tool, WorkloadLocation, WorkloadResult};

/// A workload of the laboratory. The settings struct of each workload implements this trait.
pub trait Workload {
    /// Returns the programs that the workload needs.
    fn needs(&self) -> Vec<Tool>;

    /// Checks the settings themselves. [`Workload::ready`] checks that this machine has what they
    /// require.
    ///
    /// # Errors
    /// [`Error::Settings`].
    fn check(&self) -> Result<(), Error>;

    /// Checks that this machine has everything that the workload needs besides programs.
    ///
    /// # Errors
    /// [`Error::Settings`], with the missing thing and how to get it.
    fn ready(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns an upper bound of the space in bytes that the workload needs on the storage under test.
    fn space(&self) -> u64;

    /// Returns the size in bytes of files at the location that an earlier run has left and this run uses again. These
    /// bytes of [`Workload::space`] need not be free.
    fn left_behind(&self, _place: &WorkloadLocation) -> u64 {
        0
    }

    /// Runs the workload to its end, and compares the data that it reads with the data that it
    /// wrote.
    ///
    /// # Errors
    /// If a program is missing or fails, or a system call fails; [`Error::Wrong`] if the storage
    /// returned other data.
    fn run(&self, run: &WorkloadRun<'_>) -> Result<WorkloadResult, Error>;
}

/// The location, folders and callbacks that a workload gets for a run.
#[derive(Clone, Copy)]
pub struct WorkloadRun<'a> {
    /// The storage under test: a folder, a device or an iSCSI unit.
    pub place: &'a WorkloadLocation,
    /// A folder on this machine's own disk or memory for scripts and expected content. The caller removes it.
    pub scratch: &'a Path,
    /// The seed of the workload's own random choices.
    pub seed: u64,
    /// A function that the workload calls from time to time with the completed share, 0 to 1.
    pub progress: &'a (dyn Fn(f64) + Sync),
}

impl WorkloadRun<'_> {
    /// Returns the folder of the location. Fails if it is a device or a unit.
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
