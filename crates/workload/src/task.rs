//! A workload with its settings: the one list of all workloads.

use serde::{Deserialize, Serialize};

use crate::{Postmark, Workload};

/// A workload with its settings.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, clap::Subcommand)]
#[serde(tag = "workload", rename_all = "kebab-case")]
pub enum Task {
    /// PostMark: mail and news as many small files; needs a folder
    Postmark(Postmark),
}

impl Task {
    /// What it does.
    #[must_use]
    pub fn workload(&self) -> &dyn Workload {
        match self {
            Self::Postmark(it) => it,
        }
    }
}
