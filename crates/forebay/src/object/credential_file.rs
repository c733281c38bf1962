//! Files with granted capabilities, as `forebay object grant` writes them (JSON).

use std::path::Path;

use config::private_file::{self, PrivateFileRule};
use control::Failure;
use initiator::{Grant, GrantedCapability};
use osd::security::Key;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{hex, key_file};

/// Maximum length in bytes of a credential file: room for a hundred capabilities.
const FILE_BYTES: u64 = 64 << 10;
const VERSION: u32 = 1;

#[derive(Deserialize, Serialize)]
struct CredentialFile {
    version: u32,
    capabilities: Vec<GrantedText>,
}

/// A capability and its secret key in hexadecimal digits. `about` is for people and is not read.
#[derive(Deserialize, Serialize)]
struct GrantedText {
    #[serde(default)]
    about: String,
    capability: String,
    key: String,
}

/// Writes capabilities to a new file, which only its owner can read. Each has a text that says what it permits.
pub fn write(path: &Path, grants: &[(String, Grant)]) -> Result<(), Failure> {
    let text = |(about, grant): &(String, Grant)| GrantedText {
        about: about.clone(),
        capability: hex::encode(&grant.capability),
        key: hex::encode(grant.key.bytes()),
    };
    let file = CredentialFile { version: VERSION, capabilities: grants.iter().map(text).collect() };
    let mut json = Zeroizing::new(serde_json::to_vec_pretty(&file).map_err(Failure::new)?);
    json.push(b'\n');
    crate::secret::create(path, &json)
}

pub fn read(path: &Path) -> Result<Vec<GrantedCapability>, Failure> {
    let shown = path.display();
    let read = private_file::read(path, "the credential", PrivateFileRule::Secret, FILE_BYTES);
    let content =
        read.map_err(|error| key_file::refused(error, &format!("the credential {shown}")))?;
    let wrong = |reason: String| {
        Failure::settings(format!("{shown} is no credential: {reason}"))
            .remedy("name a file that `forebay object grant` has written")
    };
    let file: CredentialFile =
        serde_json::from_slice(&content).map_err(|error| wrong(error.to_string()))?;
    if file.version != VERSION {
        let version = file.version;
        return Err(wrong(format!("version {version}, and this program reads {VERSION}")));
    }
    let granted = |text: &GrantedText| {
        let capability = hex::decode(&text.capability)?.try_into().ok()?;
        let key: [u8; 32] = hex::decode(&text.key)?.try_into().ok()?;
        GrantedCapability::new(capability, Key::new(key))
    };
    let granted: Option<Vec<_>> = file.capabilities.iter().map(granted).collect();
    match granted {
        Some(granted) if !granted.is_empty() => Ok(granted),
        _ => Err(wrong("it has no capability, or an invalid one".into())),
    }
}

#[cfg(test)]
mod tests {
    use object::{ObjectAddress, ObjectType};
    use osd::{Capability, Permissions, security::SecurityMethod};

    use super::*;

    #[test]
    fn a_credential_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reader");
        let capability = Capability::for_object(
            ObjectAddress::new(0x10000, 0x10001),
            ObjectType::UserObject,
            Permissions::READ,
            SecurityMethod::CmdRsp,
        );
        let grant = Grant { capability: capability.to_bytes(), key: Key::new([7; 32]) };
        write(&path, &[("read".into(), grant)]).unwrap();
        assert_eq!(*read(&path).unwrap()[0].capability(), capability);
        for wrong in [
            "",
            "{}",
            r#"{"version":2,"capabilities":[]}"#,
            r#"{"version":1,"capabilities":[]}"#,
            r#"{"version":1,"capabilities":[{"capability":"00","key":"00"}]}"#,
        ] {
            std::fs::write(&path, wrong).unwrap();
            assert!(read(&path).is_err(), "{wrong}");
        }
    }
}
