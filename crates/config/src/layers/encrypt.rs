//! The layer `encrypt`: encrypts the volume below (XTS-AES-256).

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::file::LayerFiles;
use crate::{
    connection_rules::one_secret, problem::KeyPath, rule::SettingsRuleResult, used_files::path,
};

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct EncryptLayerSettings {
    /// File with the volume's key, wrapped by a secret; `forebay key FILE --secret-file SECRET` makes it. If key or
    /// secret is lost, all data of the volume is lost: keep copies apart from the disk. Required.
    pub key: PathBuf,
    /// File with the secret that unwraps the key, at least 32 characters (`forebay secret FILE --characters 64`). The
    /// rules for the owner and mode of the file are those of a user's secret.
    pub secret_file: Option<PathBuf>,
    /// Environment variable that holds this secret, in place of `secret_file`.
    pub secret_env: Option<String>,
}

impl EncryptLayerSettings {
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
