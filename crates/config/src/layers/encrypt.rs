//! The layer `encrypt`: encryption of the volume below.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::file::LayerFiles;
use crate::{
    connection_rules::one_secret, problem::KeyPath, rule::SettingsRuleResult, used_files::path,
};

/// Settings of an encrypt layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct EncryptLayerSettings {
    /// The file with the volume's key, which a secret wraps; `forebay key FILE --secret-file SECRET` makes it.
    /// Without the key nothing can be read any more: keep a copy. Required.
    pub key: PathBuf,
    /// The file with the secret that unwraps the key, as of a user, but with at least 32 characters.
    pub secret_file: Option<PathBuf>,
    /// The environment variable with that secret, in place of a file.
    pub secret_env: Option<String>,
}

impl EncryptLayerSettings {
    /// Checks the keys at `at`.
    pub(crate) fn check<'a>(
        &'a self,
        at: &KeyPath,
        files: &mut LayerFiles<'a>,
    ) -> SettingsRuleResult {
        path(at, "key", &self.key, files)?;
        one_secret(self.secret_file.as_deref(), self.secret_env.as_deref(), at)
    }

    pub(crate) fn resolve(&mut self, folder: &Path) {
        self.key = folder.join(&self.key);
        self.secret_file = self.secret_file.take().map(|path| folder.join(path));
    }
}
