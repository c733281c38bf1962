//! The files that the settings name. Each file belongs to one unit, except that several units may have disjoint slices
//! of one file.

use std::{collections::HashMap, path::Path};

use super::{
    ByteRange,
    problem::KeyPath,
    rule::{SettingsRuleResult, required, wrong},
};

/// The files that one settings file names, each with the keys that name it. `L` holds the settings of a file that
/// several units divide into slices. All of these units must have equal settings for the file.
pub(super) struct UsedFiles<'a, L>(HashMap<&'a str, Vec<StorageFileUse<'a, L>>>);

struct StorageFileUse<'a, L> {
    at: KeyPath,
    /// Settings of the file and the bytes of the slice; `None` if one unit or layer has the whole file.
    part: Option<(&'a L, ByteRange)>,
}

impl<L> Default for UsedFiles<'_, L> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<'a, L: PartialEq> UsedFiles<'a, L> {
    /// Records that one unit or layer has the whole file `path`. Fails if the file is used already.
    pub(super) fn whole(&mut self, path: &'a str, at: &KeyPath) -> SettingsRuleResult {
        let uses = self.0.entry(path).or_default();
        if let Some(first) = uses.first() {
            let message = format!("file {path} is already used at {}", first.at);
            return wrong(at.clone(), message, "give each its own");
        }
        uses.push(StorageFileUse { at: at.clone(), part: None });
        Ok(())
    }

    /// Records that a unit has a slice of the file at `path`. Fails if the slice overlaps another one.
    pub(super) fn part(
        &mut self,
        path: &'a str,
        (file, range): (&'a L, ByteRange),
        at: &KeyPath,
    ) -> SettingsRuleResult {
        let uses = self.0.entry(path).or_default();
        for StorageFileUse { at: other, part } in &*uses {
            let Some((other_file, other_range)) = part else {
                let message = format!("file {path} is already used at {other}");
                let remedy =
                    "give each its own, or put a `slice` right above the file in both units";
                return wrong(at.clone(), message, remedy);
            };
            if *other_file != file {
                let message = format!("the keys of file {path} differ from those at {other}");
                let remedy = "write the same keys for the file in each unit that has a slice of it";
                return wrong(at.clone(), message, remedy);
            }
            if other_range.overlaps(&range) {
                let message = format!("{range} of {path} overlap {other_range}, used at {other}");
                let remedy =
                    "move `start`, or make `size` smaller, so that each byte belongs to one unit";
                return wrong(at.clone(), message, remedy);
            }
        }
        uses.push(StorageFileUse { at: at.clone(), part: Some((file, range)) });
        Ok(())
    }
}

/// Checks that the path is not empty and that no other key uses its file.
pub(super) fn path<'a, L: PartialEq>(
    at: &KeyPath,
    name: &str,
    path: &'a Path,
    files: &mut UsedFiles<'a, L>,
) -> SettingsRuleResult {
    required(at, name, path.as_os_str().is_empty(), "a path")?;
    path.to_str().map_or(Ok(()), |text| files.whole(text, &at.key(name)))
}
