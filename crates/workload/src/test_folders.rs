//! Folders for the tests of workloads, and a check that a run leaves no files.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use tempfile::TempDir;

use crate::{Error, Tool, Workload, WorkloadLocation, WorkloadResult, WorkloadRun};

/// Two temporary folders. Every user can access them, so that servers may run as another user than the test.
pub(crate) struct TrialFolders {
    folder: TempDir,
    scratch: TempDir,
}

impl TrialFolders {
    /// Makes folders for a test that needs no programs.
    pub(crate) fn new() -> Self {
        let [folder, scratch] = [0, 1].map(|_| {
            let made = tempfile::tempdir().unwrap();
            fs::set_permissions(made.path(), Permissions::from_mode(0o755)).unwrap();
            made
        });
        Self { folder, scratch }
    }

    /// Makes folders for a test that needs these programs. If a program is not installed, prints a
    /// message and returns `None`.
    pub(crate) fn with(tools: &[Tool]) -> Option<Self> {
        match tools.iter().find(|tool| tool.find().is_err()) {
            None => Some(Self::new()),
            Some(tool) => {
                println!("not run: {tool} is not installed");
                None
            }
        }
    }

    /// The folder in which the workload runs.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder for scripts and other files that do not belong on the storage under test.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Calls `work` with the environment of a workload's run in these folders.
    pub(crate) fn given<T>(&self, work: impl FnOnce(&WorkloadRun<'_>) -> T) -> T {
        let place = WorkloadLocation::Folder(self.folder().to_owned());
        work(&WorkloadRun { place: &place, scratch: self.scratch(), seed: 1, progress: &|_| () })
    }

    /// Runs a workload, and checks that it leaves no files behind.
    pub(crate) fn run(&self, workload: &dyn Workload) -> Result<WorkloadResult, Error> {
        let outcome = self.given(|run| workload.run(run));
        assert_eq!(left(self.folder()), 0, "{outcome:?}");
        outcome
    }
}

/// Counts the files and folders in a folder.
pub(crate) fn left(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}
