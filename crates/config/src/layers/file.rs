//! The layer `file`: a file or a block device, or a file that several units divide into slices.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Slice, reload::LayerChange};
use crate::{
    problem::KeyPath,
    quantity::Size,
    rule::{SettingsRuleResult, block_size, required, whole},
    used_files::{self, path},
    value_types::FileEngineSetting,
};

/// The files that the layers of one settings file use. Units with slices of one file must repeat the same keys for it.
pub(crate) type LayerFiles<'a> = used_files::UsedFiles<'a, File>;

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// The file or block device. It is locked while it is served. Name a device by a path that stays with the disk,
    /// such as /dev/disk/by-id/…. Required.
    pub path: PathBuf,
    /// Size in bytes. A file that does not exist is created with this size; an existing one must have it, or the start
    /// is refused. If left out: the size of the existing file.
    pub size: Option<Size>,
    /// If true, all holes of the file are filled with zeros at the start, which reserves their space; the unit then has
    /// no UNMAP. If false, the file is sparse: it uses space as it fills, and UNMAP frees space.
    pub preallocate: bool,
    /// If true, I/O bypasses the page cache (O_DIRECT) where the file system supports it. If false, reads may come from
    /// the page cache. Flushes and FUA make writes stable in both cases.
    pub direct: bool,
    /// I/O engine: "auto" (io_uring if the kernel allows it, otherwise threads), "uring" (fails without io_uring) or
    /// "threads".
    pub engine: FileEngineSetting,
    /// If true, the file is opened for reading only and writes are refused.
    pub read_only: bool,
    /// Logical block size in bytes: 512 or 4096. Do not change it later: hosts cannot read a disk that was partitioned
    /// with the other size.
    pub block_size: Size,
}

impl Default for File {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            size: None,
            preallocate: false,
            direct: false,
            engine: FileEngineSetting::default(),
            read_only: false,
            block_size: Size(512),
        }
    }
}

impl File {
    /// Checks the keys of a unit that has the whole file. `at` is the path of the keys in the settings.
    pub(crate) fn check<'a>(
        &'a self,
        at: &KeyPath,
        files: &mut LayerFiles<'a>,
    ) -> SettingsRuleResult {
        path(at, "path", &self.path, files)?;
        self.check_size(at)
    }

    /// Checks the keys of a unit that has a slice of the file; other units may have other slices. `at` is the path of
    /// the keys in the settings.
    pub(crate) fn check_part<'a>(
        &'a self,
        slice: &Slice,
        at: &KeyPath,
        files: &mut LayerFiles<'a>,
    ) -> SettingsRuleResult {
        required(at, "path", self.path.as_os_str().is_empty(), "a path")?;
        if let Some(text) = self.path.to_str() {
            files.part(text, (self, slice.range()), &at.key("path"))?;
        }
        self.check_size(at)
    }

    fn check_size(&self, at: &KeyPath) -> SettingsRuleResult {
        block_size(at, self.block_size)?;
        whole(at, "size", self.size, self.block_size)
    }

    pub(crate) fn resolve(&mut self, folder: &Path) {
        self.path = folder.join(&self.path);
    }

    /// Takes over a larger size from `new`. A reload cannot shrink a file.
    pub(super) fn reload(&mut self, new: &Self) -> LayerChange {
        match new.size {
            Some(_) => LayerChange::of_size("file", &mut self.size, new.size),
            None => LayerChange::None,
        }
    }
}
