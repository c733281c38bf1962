//! The layer `file`: a file or a block device, or a part of one that several units have slices of.

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

/// The files that the layers of one settings file use. Units with slices of one file write the same keys for the file.
pub(crate) type LayerFiles<'a> = used_files::UsedFiles<'a, File>;

/// Settings of a file layer.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// The file or block device. Required.
    pub path: PathBuf,
    /// Length in bytes. The file is created with it if it does not exist, and checked against it if it does. Not
    /// needed for a file that exists.
    pub size: Option<Size>,
    /// Whether all holes of the file are filled with zeros at the start; it is not thin then, and has no UNMAP.
    /// Otherwise it is sparse, uses space as it fills, and frees space at UNMAP.
    pub preallocate: bool,
    /// Whether the page cache is bypassed (O_DIRECT), if the file system supports it.
    pub direct: bool,
    /// The I/O engine: "auto" (io_uring if the kernel allows it, otherwise threads), "uring" or "threads".
    pub engine: FileEngineSetting,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Logical block size in bytes: 512 or 4096.
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
    /// Checks the keys at `at`, for a unit that has the whole file.
    pub(crate) fn check<'a>(
        &'a self,
        at: &KeyPath,
        files: &mut LayerFiles<'a>,
    ) -> SettingsRuleResult {
        path(at, "path", &self.path, files)?;
        self.check_size(at)
    }

    /// Checks the keys at `at`, for a unit that has a slice of the file. Other units may have other slices.
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

    /// A reload may let the file grow.
    pub(super) fn reload(&mut self, new: &Self) -> LayerChange {
        match new.size {
            Some(_) => LayerChange::of_size("file", &mut self.size, new.size),
            None => LayerChange::None,
        }
    }
}
