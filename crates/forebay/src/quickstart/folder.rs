//! The temporary folder of `forebay quickstart`, with its settings files.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use control::Failure;

/// A temporary folder. Dropping this removes the folder with its content.
pub struct QuickstartFolder(PathBuf);

impl QuickstartFolder {
    /// Creates a private folder in the system's folder for temporary files.
    pub fn make() -> Result<Self, Failure> {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("forebay-quickstart-{}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| {
            Failure::new(format!("cannot make the folder {}: {error}", path.display()))
                .remedy("set TMPDIR to a folder with 1 GiB of free space")
        })?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.0.join(name);
        std::fs::write(&path, text)
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))?;
        Ok(path)
    }

    /// Returns the settings of a node with one file of `bytes`. The file is always a consistent prefix of the writes of
    /// the gateway's hosts. The node's cache is small, so that the final verification reads the file and not the cache.
    pub fn node_settings(&self, name: &str, bytes: u64) -> String {
        let image = quoted(&self.0.join("node.img"));
        let (log, state) = (quoted(&self.0.join("node.log")), quoted(&self.0.join("node.state")));
        format!(
            r#"listen = ["127.0.0.1:0"]
control = "node.sock"
state = {state}

[[target]]
name = "{name}"

[[target.unit]]
stack = [
    {{ file = {{ path = {image}, size = {bytes} }} }},
    {{ cache = {{ log = {log}, log_size = "256MiB", dram = "16MiB", report = "at-flush", epoch_too_large = "split" }} }},
]
"#
        )
    }

    /// Returns the settings of a gateway whose far volume is at the address `node`.
    pub fn gateway_settings(&self, name: &str, node: SocketAddr, node_name: &str) -> String {
        let log = quoted(&self.0.join("gateway.log"));
        let nvram = quoted(&self.0.join("gateway.nvram"));
        format!(
            r#"listen = ["127.0.0.1:0"]
control = "gateway.sock"

[[target]]
name = "{name}"

[[target.unit]]
stack = [
    {{ remote = {{ url = "iscsi://{node}/{node_name}/0" }} }},
    {{ cache = {{ log = {log}, log_size = "512MiB", nvram = {nvram}, dram = "96MiB" }} }},
]
"#
        )
    }
}

impl Drop for QuickstartFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(
                %error, folder = %self.0.display(),
                remedy = "remove it: `rm -r` with the folder of this event",
                "the folder stays"
            );
        }
    }
}

/// Formats a path as a TOML string.
fn quoted(path: &Path) -> String {
    toml::Value::from(path.to_string_lossy().into_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Settings;

    #[test]
    fn the_settings_are_valid_for_a_folder_with_quotes_in_its_name() {
        let folder = QuickstartFolder(PathBuf::from("/tmp/it's \"here\""));
        let node = ([127, 0, 0, 1], 3260).into();
        for text in [
            folder.node_settings("iqn.2026-11.a:b", 1 << 20),
            folder.gateway_settings("iqn.2026-11.a:c", node, "iqn.2026-11.a:b"),
        ] {
            Settings::parse(Path::new("quickstart"), &text).unwrap();
        }
    }
}
