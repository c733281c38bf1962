//! A run as tests need it: folders of its own, and a look at what was left.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use tempfile::TempDir;

use crate::{Error, Tool, Workload, WorkloadLocation, WorkloadResult, WorkloadRun};

/// Two folders, to which also the users can come that servers run as.
pub(crate) struct TrialFolders {
    folder: TempDir,
    scratch: TempDir,
}

impl TrialFolders {
    /// Where nothing but folders is needed.
    pub(crate) fn new() -> Self {
        let [folder, scratch] = [0, 1].map(|_| {
            let made = tempfile::tempdir().unwrap();
            fs::set_permissions(made.path(), Permissions::from_mode(0o755)).unwrap();
            made
        });
        Self { folder, scratch }
    }

    /// Where these programs are needed; `None`, which is said, if one is missing.
    pub(crate) fn with(tools: &[Tool]) -> Option<Self> {
        match tools.iter().find(|tool| tool.find().is_err()) {
            None => Some(Self::new()),
            Some(tool) => {
                println!("not run: {tool} is not installed");
                None
            }
        }
    }

    /// Where the workload runs.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it has beside that.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Does something with what a run is given.
    pub(crate) fn given<T>(&self, work: impl FnOnce(&WorkloadRun<'_>) -> T) -> T {
        let place = WorkloadLocation::Folder(self.folder().to_owned());
        work(&WorkloadRun { place: &place, scratch: self.scratch(), seed: 1, progress: &|_| () })
    }

    /// Runs a workload, and sees that it leaves nothing where it ran.
    pub(crate) fn run(&self, workload: &dyn Workload) -> Result<WorkloadResult, Error> {
        let outcome = self.given(|run| workload.run(run));
        assert_eq!(left(self.folder()), 0, "{outcome:?}");
        outcome
    }
}

/// How many files and folders are in a folder.
pub(crate) fn left(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}
