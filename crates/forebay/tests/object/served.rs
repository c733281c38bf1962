//! A node with an object drive, and `forebay object` as its users run it.

use std::{os::unix::fs::PermissionsExt, path::PathBuf, process::Output};

use serde_json::Value;

use crate::{
    complaint, printed,
    support::{Place, Serving, forebay},
};

pub const NAME: &str = "iqn.2026-11.test:objects";
pub const SIGNED: &str = "security = 'cmdrsp'\nmaster_key_file = 'drive.key'";
pub const FILE: &str = "{ file = { path = 'drive.img', size = '256MiB' } }";

/// A process that serves an object drive.
pub struct Served {
    pub place: Place,
    pub node: Serving,
    settings: String,
}

impl Served {
    /// Makes a key with `forebay object key`, serves the drive and sets its root key.
    pub fn start(layers: &str) -> Self {
        let place = Place::new();
        let key = place.path("drive.key");
        printed(forebay().args(["object", "key"]).arg(&key).output().expect("it runs"));
        let served = Self::serve(place, layers, SIGNED);
        assert!(served.owner("set-key", &[]).contains("the key is set"));
        served
    }

    pub fn serve(place: Place, layers: &str, security: &str) -> Self {
        let settings = format!(
            "listen = ['127.0.0.1:0']\n[[target]]\nname = '{NAME}'\n[[target.unit]]\nkind = 'object'\n\
             stack = [ {layers} ]\n[target.unit.object]\n{security}\n"
        );
        let node = place.serve("node", &settings);
        Self { place, node, settings }
    }

    /// Serves a disk beside the drive.
    pub fn add_disk(&mut self) {
        self.settings.push_str(
            "[[target]]\nname = 'iqn.2026-11.test:disk'\n[[target.unit]]\n\
             stack = [ { memory = { size = '1MiB' } } ]\n",
        );
        self.restart();
    }

    /// Kills the node, and serves the drive again.
    pub fn restart(&mut self) {
        self.restart_with("");
    }

    /// Kills the node, and serves the drive again with additional settings of the drive.
    pub fn restart_with(&mut self, more: &str) {
        self.node.kill();
        self.node = self.try_serve(more).expect("it starts");
    }

    /// Kills the node, and serves the drive again at the same address.
    pub fn restart_in_place(&mut self) {
        let address = format!("listen = ['{}']", self.node.address);
        self.settings = self.settings.replacen("listen = ['127.0.0.1:0']", &address, 1);
        self.restart();
    }

    /// Starts the node with additional settings of the drive; returns the message if it does not start.
    pub fn try_serve(&self, more: &str) -> Result<Serving, String> {
        let begin = "[target.unit.object]\n";
        let settings = self.settings.replacen(begin, &format!("{begin}{more}\n"), 1);
        self.place.try_serve("node", &settings)
    }

    pub fn url(&self) -> String {
        self.node.url(NAME)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.place.path(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("text").to_owned()
    }

    pub fn file(&self, name: &str, content: &[u8]) -> String {
        std::fs::write(self.path(name), content).expect("written");
        self.text(name)
    }

    /// Returns the command `forebay object ACT URL ARGS`.
    pub fn command(&self, act: &str, args: &[&str]) -> std::process::Command {
        let mut command = forebay();
        command.args(["object", act, &self.url()]).args(args);
        command
    }

    pub fn run(&self, act: &str, args: &[&str]) -> Output {
        self.command(act, args).output().expect("the program runs")
    }

    /// Returns the command, signed with the key of the drive's owner.
    pub fn signed(&self, act: &str, args: &[&str]) -> std::process::Command {
        let key = self.text("drive.key");
        self.command(act, &[args, &["--key-file", &key]].concat())
    }

    /// Runs a command as the drive's owner, and returns what it prints.
    pub fn owner(&self, act: &str, args: &[&str]) -> String {
        printed(self.signed(act, args).output().expect("the program runs"))
    }

    /// Runs a command as the drive's owner, and returns the JSON that it prints.
    pub fn json(&self, act: &str, args: &[&str]) -> Value {
        let printed = self.owner(act, &[args, &["--json"]].concat());
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{act}: {error}: {printed}"))
    }

    /// Runs a command of the drive's owner that fails, and returns its message with the remedy.
    pub fn refused(&self, act: &str, args: &[&str]) -> String {
        complaint(&self.signed(act, args).output().expect("the program runs"))
    }

    /// Creates a partition, and returns its name.
    pub fn partition(&self) -> String {
        self.owner("create", &[]).trim().to_owned()
    }

    /// Creates an object with this content, and returns its name.
    pub fn object(&self, partition: &str, content: &[u8]) -> String {
        let object = self.owner("create", &[partition]).trim().to_owned();
        let file = self.file("source", content);
        self.owner("put", &[&object, &file]);
        object
    }

    /// Reads an object as the drive's owner.
    pub fn content(&self, object: &str) -> Vec<u8> {
        let copy = self.path("content");
        let _ = std::fs::remove_file(&copy);
        self.owner("get", &[object, copy.to_str().expect("text")]);
        std::fs::read(copy).expect("read")
    }
}

pub fn make_private(path: &std::path::Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("chmod");
}

/// Returns bytes that differ from place to place.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7 % 251) as u8 ^ (at >> 16) as u8).collect()
}
