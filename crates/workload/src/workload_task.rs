//! The list of all workloads.

use serde::{Deserialize, Serialize};

use crate::{
    Bonnie, Build, CommandsWorkload, Error, Fio, Micro, Postmark, Sdet, Surge, Tpcc, TraceWorkload,
    Workload, WorkloadResult, WorkloadRun,
};

/// A workload with its settings.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, clap::Subcommand)]
#[serde(tag = "workload", rename_all = "kebab-case")]
pub enum WorkloadTask {
    /// Bonnie++: writes, rewrites and reads a large file, and seeks in it; needs a folder
    Bonnie(Bonnie),
    /// A software build: unpack, configure, make; needs a folder
    Build(Build),
    /// SCSI commands over one session, with a fixed number in flight; needs a URL
    Commands(CommandsWorkload),
    /// fio, configured like Iometer, IOzone or vxbench; needs a folder or device
    Fio(Fio),
    /// Reads or writes of one size, one at a time; needs a folder, device or URL
    Micro(Micro),
    /// PostMark: a mail and news server with many small files; needs a folder
    Postmark(Postmark),
    /// Concurrent scripts of a day of software development; needs a folder
    Sdet(Sdet),
    /// A trace like EMC-tel: small requests, most of them writes, at their original times; needs a
    /// device or iSCSI unit of 900 MB
    Trace(TraceWorkload),
    /// A web server under the load of Surge's users: nginx with its log; needs a folder
    Surge(Surge),
    /// TPC-C on PostgreSQL: orders of a wholesale supplier; needs a folder
    Tpcc(Tpcc),
}

impl WorkloadTask {
    #[must_use]
    pub fn workload(&self) -> &dyn Workload {
        match self {
            Self::Bonnie(it) => it,
            Self::Build(it) => it,
            Self::Commands(it) => it,
            Self::Fio(it) => it,
            Self::Micro(it) => it,
            Self::Postmark(it) => it,
            Self::Sdet(it) => it,
            Self::Trace(it) => it,
            Self::Surge(it) => it,
            Self::Tpcc(it) => it,
        }
    }

    /// Checks settings, programs, location and free space, and runs the workload.
    ///
    /// # Errors
    /// If a check fails, its error; nothing is changed then. Otherwise the errors of
    /// [`Workload::run`].
    pub fn run(&self, run: &WorkloadRun<'_>) -> Result<WorkloadResult, Error> {
        let workload = self.workload();
        workload.check()?;
        for tool in workload.needs() {
            tool.find()?;
        }
        if let Some(free) = run.place.room()? {
            let needed = workload.space().saturating_sub(workload.left_behind(run.place));
            if needed > free {
                return Err(Error::Space { needed, free });
            }
        }
        workload.run(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folders::{TrialFolders, left};

    #[test]
    fn excessive_settings_are_refused_before_sizes_are_computed() {
        let trial = TrialFolders::new();
        let (most, log) = (u32::MAX, 32);
        for task in [
            WorkloadTask::Tpcc(Tpcc {
                warehouses: most,
                items: most,
                customers: most,
                ..Tpcc::default()
            }),
            WorkloadTask::Tpcc(Tpcc { seconds: most, warm_up: most, log, ..Tpcc::default() }),
            WorkloadTask::Surge(Surge { seconds: most, warm_up: 1, ..Surge::default() }),
            WorkloadTask::Sdet(Sdet { scripts: most, rounds: most }),
            WorkloadTask::Bonnie(Bonnie { file_mib: most, processes: most, ..Bonnie::default() }),
            WorkloadTask::Surge(Surge { warm_up: most, ..Surge::default() }),
        ] {
            // `space` must not overflow even with these settings, since a plan calls it before
            // `check`.
            assert!(task.workload().space() > 0);
            let ran = trial.given(|run| task.run(run));
            assert!(matches!(ran, Err(Error::Settings(_))), "{task:?}");
        }
    }

    #[test]
    fn a_workload_that_needs_more_space_than_is_free_does_not_start() {
        let (files, most) = (u32::MAX, u32::MAX);
        let task = WorkloadTask::Postmark(Postmark { files, most, ..Postmark::default() });
        let Some(trial) = TrialFolders::with(&task.workload().needs()) else { return };
        assert!(matches!(trial.given(|run| task.run(run)), Err(Error::Space { .. })));
        assert_eq!(left(trial.folder()), 0);
    }
}
