//! A workload with its settings: the one list of all workloads.

use serde::{Deserialize, Serialize};

use crate::{Build, Postmark, Sdet, Workload};

/// A workload with its settings.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, clap::Subcommand)]
#[serde(tag = "workload", rename_all = "kebab-case")]
pub enum Task {
    /// A software build: unpack, configure, make; needs a folder
    Build(Build),
    /// PostMark: mail and news as many small files; needs a folder
    Postmark(Postmark),
    /// Scripts of a software developer's day, many at once; needs a folder
    Sdet(Sdet),
}

impl Task {
    /// What it does.
    #[must_use]
    pub fn workload(&self) -> &dyn Workload {
        match self {
            Self::Build(it) => it,
            Self::Postmark(it) => it,
            Self::Sdet(it) => it,
        }
    }
}
