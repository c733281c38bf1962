//! Reads and checks a settings file, and makes its relative paths relative to the folder of the file.

use std::path::Path;

use super::{Layer, Settings, access, problem::SettingsFileProblem, records_folder, rule, rules};

impl Settings {
    /// Reads and checks a file, with the secrets and certificates that it names. Relative paths are relative to the
    /// folder of the file.
    pub fn load(file: &Path) -> Result<Self, SettingsFileProblem> {
        let (mut settings, text) = Self::read(file)?;
        settings.read_secrets().and_then(|()| settings.read_certificates()).map_err(
            |access::UnusableCredential { key, message, remedy }| {
                SettingsFileProblem::at(file, &text, key, message, remedy)
            },
        )?;
        Ok(settings)
    }

    /// Reads and checks the settings file, but not the secret and certificate files that it names.
    pub fn load_without_secrets(file: &Path) -> Result<Self, SettingsFileProblem> {
        Self::read(file).map(|(settings, _)| settings)
    }

    fn read(file: &Path) -> Result<(Self, String), SettingsFileProblem> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| SettingsFileProblem::unreadable(file, &error))?;
        let mut settings = Self::parse(file, &text)?;
        let folder = file.parent().unwrap_or(Path::new(""));
        file.clone_into(&mut settings.file);
        settings.resolve(folder);
        settings.resolve_secrets(folder);
        settings.resolve_certificates(folder);
        Ok((settings, text))
    }

    /// Parses and checks the text of a settings file. The name `file` is used in errors only.
    pub fn parse(file: &Path, text: &str) -> Result<Self, SettingsFileProblem> {
        let settings: Self = toml::from_str(text)
            .map_err(|error| SettingsFileProblem::from_toml(file, text, &error))?;
        match rules::broken(&settings) {
            None => Ok(settings),
            Some(rule::BrokenSettingsRule { key, message, remedy }) => {
                Err(SettingsFileProblem::at(file, text, key, message, remedy))
            }
        }
    }

    fn resolve(&mut self, folder: &Path) {
        self.common_cache.iter_mut().for_each(|common| common.cache.resolve(folder));
        let units = self.target.iter_mut().flat_map(|target| &mut target.unit);
        for unit in units {
            unit.stack.iter_mut().for_each(|layer| layer.resolve(folder));
            if let Some(object) = &mut unit.object {
                object.resolve(folder);
            }
        }
        if let Some(names) = &mut self.names {
            names.secret_file = names.secret_file.take().map(|path| folder.join(path));
        }
        if let Some(accept) = &mut self.accept {
            accept.folder = folder.join(&accept.folder);
        }
        self.control = self.control.take().map(|path| folder.join(path));
        self.state = self.state.take().map(|path| folder.join(path));
        let units = self.target.iter_mut().flat_map(|target| &mut target.unit);
        let caches = units.flat_map(|unit| &mut unit.stack).filter_map(|layer| match layer {
            Layer::Cache(cache) => Some(cache),
            _ => None,
        });
        let common = self.common_cache.iter_mut().map(|common| &mut common.cache);
        let state = records_folder(self.state.as_deref(), &self.file);
        for cache in caches.chain(common) {
            cache.state = Some(state.clone());
            cache.config.clone_from(&self.file);
        }
    }
}
