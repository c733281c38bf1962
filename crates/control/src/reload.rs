//! Effect of a reload (`forebay reload`, `forebay check`), as text.

use serde::{Deserialize, Serialize};

/// Effect of a reload. Each entry is one line of text.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ReloadChanges {
    /// New targets, units and portals.
    pub added: Vec<String>,
    /// Changed targets, units and portals.
    pub changed: Vec<String>,
    /// Removed targets, units and portals.
    pub removed: Vec<String>,
    /// Changes that need a restart, with the reason. If there are any, the reload changes nothing.
    pub refused: Vec<String>,
    /// Units that were refused at the start and are still not served, with the reason.
    #[serde(default)]
    pub not_served: Vec<String>,
}

impl ReloadChanges {
    /// Returns true if there is nothing to report: no change, no refused change, and no unit that is still not served.
    pub fn is_empty(&self) -> bool {
        [&self.added, &self.changed, &self.removed, &self.refused, &self.not_served]
            .iter()
            .all(|list| list.is_empty())
    }

    /// Returns all changes as lines, each with a prefix such as `added: `.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let lists = [
            ("added", &self.added),
            ("changed", &self.changed),
            ("removed", &self.removed),
            ("refused", &self.refused),
            ("still not served", &self.not_served),
        ];
        lists
            .into_iter()
            .flat_map(|(what, list)| list.iter().map(move |line| format!("{what}: {line}")))
    }

    /// Returns all entries as text, each ending with a line break.
    pub fn for_people(&self) -> String {
        self.lines().map(|line| line + "\n").collect()
    }
}
