//! Settings of a unit that is an object drive.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use zeroize::Zeroizing;

use crate::{
    Unit, UnitKind,
    layers::Layer,
    private_file::{self, PrivateFileError, PrivateFileRule},
    problem::KeyPath,
    quantity::{Size, TimeSpan},
    rule::{SettingsRuleResult, range, required, wrong},
};

/// The table `[target.unit.object]`: an object drive.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectDriveSettings {
    /// Least security method that the drive accepts: "nosec" (every initiator may do everything), "capkey" (each
    /// command needs a capability of this session), "cmdrsp" (each command is signed), "alldata" (the data is signed,
    /// too). Stronger methods are always accepted.
    pub security: DriveSecurity,
    /// File with the master key: two lines of 64 hexadecimal digits, the authentication key and the generation key.
    /// `forebay object key FILE` makes it. This key controls the drive, and without it the drive's other keys cannot be
    /// read. Its mode must be 0600. Required, except with `security = "nosec"`.
    pub master_key_file: Option<PathBuf>,
    /// File with the former master key, while `master_key_file` names a new one: at the start, the drive's keys are
    /// sealed under the new key. Remove this key afterwards, and set new root and partition keys with
    /// `forebay object set-key --all`.
    pub former_master_key_file: Option<PathBuf>,
    /// OSD SYSTEM ID, 40 hexadecimal digits: part of what capabilities are signed with, so each drive needs its own. If
    /// left out: derived from the serial number.
    pub system_id: Option<String>,
    /// Greatest difference between the time in a signed command and the drive's clock, 1s to 1h. Signed commands from
    /// outside this window are refused. A longer window needs more memory for the commands that it remembers.
    pub nonce_window: TimeSpan,
    /// Number of signed commands that the drive remembers in order to refuse repetitions, 1024 to 16777216, of 32 bytes
    /// each. When it is reached, the oldest are forgotten, and commands that were signed earlier are refused.
    pub nonces: u32,
    /// Maximum number of attributes in one list of a command, 1 to 65536.
    pub list_entries: u32,
    /// Maximum length in bytes of one list of attributes, 4 KiB to 16 MiB. The lists of all commands that wait for
    /// their data are in memory.
    pub list_bytes: Size,
    /// Maximum length in bytes of all attribute values of one object, 4 KiB to 16 MiB.
    pub attribute_bytes: Size,
    /// Maximum number of collections that one object is a member of, 1 to 65536.
    pub collections_per_object: u32,
    /// Maximum number of bytes that one command transfers in each direction, data and lists together, 64 KiB to 32 MiB.
    pub command_bytes: Size,
}

/// The security methods of OSD-2, ascending by what they protect.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd)]
#[serde(rename_all = "kebab-case")]
pub enum DriveSecurity {
    Nosec,
    Capkey,
    #[default]
    Cmdrsp,
    Alldata,
}

impl Default for ObjectDriveSettings {
    fn default() -> Self {
        Self {
            security: DriveSecurity::default(),
            master_key_file: None,
            former_master_key_file: None,
            system_id: None,
            nonce_window: TimeSpan::seconds(300),
            nonces: 65_536,
            list_entries: 1024,
            list_bytes: Size::kib(64),
            attribute_bytes: Size::kib(64),
            collections_per_object: 64,
            command_bytes: Size::mib(32),
        }
    }
}

impl ObjectDriveSettings {
    pub(crate) fn check(&self, at: &KeyPath) -> SettingsRuleResult {
        let needs_key = self.security != DriveSecurity::Nosec;
        let example = "\"drive.key\"; make it with `forebay object key drive.key`";
        required(at, "master_key_file", needs_key && self.master_key_file.is_none(), example)?;
        let former = self.former_master_key_file.is_some();
        required(at, "master_key_file", former && self.master_key_file.is_none(), example)?;
        if former && self.former_master_key_file == self.master_key_file {
            let remedy =
                "leave it out, or name the file with the key that `master_key_file` replaces";
            return wrong(
                at.key("former_master_key_file"),
                "the same file as `master_key_file`",
                remedy,
            );
        }
        if let Some(id) = &self.system_id
            && parse_system_id(id).is_none()
        {
            let remedy = "leave it out, or write 40 digits such as those of `forebay object info`";
            return wrong(at.key("system_id"), "not 40 hexadecimal digits", remedy);
        }
        range(
            at,
            "nonce_window",
            self.nonce_window,
            TimeSpan::seconds(1),
            TimeSpan::seconds(3600),
        )?;
        range(at, "nonces", self.nonces, 1024, 1 << 24)?;
        range(at, "list_entries", self.list_entries, 1, 65_536)?;
        range(at, "list_bytes", self.list_bytes, Size::kib(4), Size::mib(16))?;
        range(at, "attribute_bytes", self.attribute_bytes, Size::kib(4), Size::mib(16))?;
        range(at, "collections_per_object", self.collections_per_object, 1, 65_536)?;
        range(at, "command_bytes", self.command_bytes, Size::kib(64), Size::mib(32))
    }

    /// Checks that an object drive can use a volume with these layers.
    pub(crate) fn check_stack(stack: &[Layer], at: &KeyPath) -> SettingsRuleResult {
        for (index, layer) in stack.iter().enumerate() {
            let (problem, remedy) = match layer {
                Layer::ReadOnly => {
                    ("an object drive writes its own tables at each start", "leave out this layer")
                }
                Layer::File(file) if file.read_only => {
                    ("an object drive writes its own tables at each start", "leave out `read_only`")
                }
                Layer::CommonCache(_) | Layer::Half(_) => {
                    ("an object drive is one unit only", "give the drive a stack of its own")
                }
                Layer::Cache(cache) if cache.pair.is_some() => (
                    "an object drive cannot be served by a pair of gateways",
                    "leave out `pair`, and use two drives",
                ),
                _ => continue,
            };
            return wrong(at.index(index), problem, remedy);
        }
        Ok(())
    }

    pub(crate) fn resolve(&mut self, folder: &Path) {
        for file in [&mut self.master_key_file, &mut self.former_master_key_file] {
            *file = file.take().map(|path| folder.join(path));
        }
    }

    /// Returns the OSD SYSTEM ID of the settings.
    #[must_use]
    pub fn system_id(&self) -> Option<[u8; 20]> {
        self.system_id.as_deref().and_then(parse_system_id)
    }
}

/// Reads a master key file. Only the user of this process may have access to it.
///
/// # Errors
/// The message, and the remedy.
pub fn read_master_key_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, (String, String)> {
    const MOST: u64 = 4096;
    let read = private_file::read(path, "the master key file", PrivateFileRule::Secret, MOST);
    read.map_err(|error| match error {
        PrivateFileError::Unreadable(error) => {
            let shown = path.display();
            let remedy =
                format!("make one with `forebay object key {shown}`, or correct `master_key_file`");
            (format!("cannot read the master key file {shown}: {error}"), remedy)
        }
        PrivateFileError::Unfit(message, remedy) => (message, remedy),
    })
}

/// Checks that the keys of `unit` are valid for its kind.
pub(crate) fn kind_of_unit(unit: &Unit, at: &KeyPath) -> SettingsRuleResult {
    match (unit.kind, &unit.object) {
        (UnitKind::Block, None) => Ok(()),
        (UnitKind::Block, Some(_)) => wrong(
            at.key("object"),
            "this table is for an object drive only",
            "write kind = \"object\", or leave out the table",
        ),
        (UnitKind::Object, object) => {
            let disk = Unit::default();
            let differing = [
                ("volume", unit.volume.is_some()),
                ("removable", unit.removable),
                ("soft_threshold", unit.soft_threshold.is_some()),
                ("physical_block_size", unit.physical_block_size.is_some()),
                ("write_same_to_end", unit.write_same_to_end),
                ("reads_beside_claim", unit.reads_beside_claim != disk.reads_beside_claim),
                ("share_grain", unit.share_grain.is_some()),
                ("share_lease", unit.share_lease != disk.share_lease),
            ];
            if let Some((key, _)) = differing.into_iter().find(|(_, differs)| *differs) {
                let remedy = "leave it out, or write kind = \"block\"";
                return wrong(at.key(key), "this key is for a disk only", remedy);
            }
            ObjectDriveSettings::check_stack(&unit.stack, &at.key("stack"))?;
            object.clone().unwrap_or_default().check(&at.key("object"))
        }
    }
}

/// Parses a system id, which is written as 40 hexadecimal digits.
fn parse_system_id(text: &str) -> Option<[u8; 20]> {
    let digits = text.as_bytes();
    let mut bytes = [0; 20];
    if digits.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::Settings;

    fn parse(unit: &str) -> Result<Settings, String> {
        let text = format!(
            "[[target]]\nname = \"iqn.2026-11.io.example:objects\"\n[[target.unit]]\n\
             kind = \"object\"\nstack = [{{ memory = {{ size = \"64MiB\" }} }}]\n{unit}"
        );
        Settings::parse(Path::new("f.toml"), &text).map_err(|problem| problem.to_string())
    }

    #[test]
    fn a_drive_needs_a_key_file_unless_it_has_no_security() {
        let error = parse("").unwrap_err();
        assert!(error.contains("`master_key_file` is missing"), "{error}");
        assert!(parse("[target.unit.object]\nsecurity = \"nosec\"\n").is_ok());
        let settings = parse("[target.unit.object]\nmaster_key_file = \"drive.key\"\n").unwrap();
        let object = settings.target[0].unit[0].object.as_ref().unwrap();
        assert_eq!(object.security, DriveSecurity::Cmdrsp);
    }

    #[test]
    fn a_former_master_key_needs_another_one_that_replaces_it() {
        let unit =
            |keys: &str| parse(&format!("[target.unit.object]\nsecurity = \"nosec\"\n{keys}"));
        let former = "former_master_key_file = \"former.key\"\n";
        let error = unit(former).unwrap_err();
        assert!(error.contains("`master_key_file` is missing"), "{error}");
        let error = unit(&format!("{former}master_key_file = \"former.key\"\n")).unwrap_err();
        assert!(error.contains("the same file as `master_key_file`"), "{error}");
        assert!(unit(&format!("{former}master_key_file = \"drive.key\"\n")).is_ok());
    }

    #[test]
    fn keys_of_disks_are_refused_for_a_drive_and_the_reverse() {
        let nosec = "[target.unit.object]\nsecurity = \"nosec\"\n";
        for key in ["removable = true", "physical_block_size = 512", "share_grain = \"1MiB\""] {
            let error = parse(&format!("{key}\n{nosec}")).unwrap_err();
            assert!(error.contains("for a disk only"), "{error}");
        }
        let text = format!(
            "[[target]]\nname = \"iqn.2026-11.io.example:disk\"\n[[target.unit]]\n\
             stack = [{{ memory = {{ size = \"64MiB\" }} }}]\n{nosec}"
        );
        let error = Settings::parse(Path::new("f.toml"), &text).unwrap_err().to_string();
        assert!(error.contains("for an object drive only"), "{error}");
    }

    #[test]
    fn values_outside_their_range_are_refused() {
        for (key, value) in [
            ("system_id", "\"12\""),
            ("nonce_window", "\"2h\""),
            ("nonces", "1"),
            ("list_entries", "0"),
            ("list_bytes", "1"),
            ("attribute_bytes", "\"1GiB\""),
            ("collections_per_object", "70000"),
            ("command_bytes", "\"64MiB\""),
        ] {
            let unit = format!("[target.unit.object]\nsecurity = \"nosec\"\n{key} = {value}\n");
            let error = parse(&unit).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn layers_that_need_a_disk_above_them_or_refuse_writes_are_refused_below_a_drive() {
        for (layer, why) in [
            ("\"read-only\"", "its own tables"),
            ("{ common-cache = { name = \"c\" } }", "one unit only"),
        ] {
            let text = format!(
                "[[target]]\nname = \"iqn.2026-11.io.example:objects\"\n[[target.unit]]\n\
                 kind = \"object\"\nstack = [{{ memory = {{ size = \"64MiB\" }} }}, {layer}]\n\
                 [target.unit.object]\nsecurity = \"nosec\"\n"
            );
            let error = Settings::parse(Path::new("f.toml"), &text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_master_key_file_is_readable_by_its_user_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drive.key");
        let read = |mode: u32| {
            fs::write(&path, "content").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            read_master_key_file(&path)
        };
        assert_eq!(**read(0o600).ok().unwrap(), *b"content");
        assert!(read(0o644).err().unwrap().0.contains("open to others"));
        fs::remove_file(&path).unwrap();
        let (message, remedy) = read_master_key_file(&path).err().unwrap();
        assert!(message.contains("cannot read") && remedy.contains("forebay object key"));
    }
}
