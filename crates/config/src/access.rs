//! Settings of access rules and CHAP credentials. A settings file holds no secret: it names a file or an environment
//! variable, and this module reads the secret from there.

use std::path::{Path, PathBuf};

use control::Failure;
use iscsi::login::chap::{ChapAlgorithm, ChapSecret, Credential, SECRET_MAX, SECRET_MIN};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    Settings,
    problem::KeyPath,
    secret::{self, SecretWithSource},
    value_types::ParsedTextVisitor,
};
use crate::quantity::REMEDY;

/// A CHAP credential: a name, and the file or environment variable that holds the secret.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct ChapCredentialSettings {
    /// CHAP name of the user. It need not be an iSCSI name; it must match the name that the initiator is configured
    /// with, up to 255 bytes. Required.
    pub name: String,
    /// File with the secret: 12 to 255 bytes, without the line end. Windows accepts at most 16. The file must belong to
    /// root or to the user of the process, with mode 0600 or less. `forebay secret FILE` makes one.
    pub secret_file: Option<PathBuf>,
    /// Environment variable that holds the secret, in place of `secret_file`.
    pub secret_env: Option<String>,
    #[serde(skip)]
    secret: Option<ChapSecret>,
}

/// A rule that admits initiators. An initiator must meet all conditions that are set.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Allow {
    /// iSCSI name of the initiator, or the beginning of names followed by `*`. An initiator can claim any name: without
    /// `user`, this prevents mistakes but not attacks.
    pub initiator: Option<InitiatorNamePattern>,
    /// IPv4 or IPv6 network, or one address, from which the initiator connects. Behind address translation this is the
    /// translated address.
    pub network: Option<AccessNetworkSetting>,
    /// Name of the `[[user]]` as which the initiator must authenticate by CHAP. CHAP neither encrypts nor signs the
    /// data that follows: use TLS on a network that you do not control.
    pub user: Option<String>,
}

/// The table `[discovery]`: access to discovery sessions.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Discovery {
    /// Initiators that may ask for targets, with the same keys as `allow` of a target. Each initiator sees only the
    /// targets that it may log in to as the user that it authenticated as. If left out: all initiators may ask.
    pub allow: Option<Vec<Allow>>,
    /// Credential with which the portals authenticate themselves to initiators that request it (mutual CHAP), as
    /// `mutual` of a target.
    pub mutual: Option<ChapCredentialSettings>,
}

/// An iSCSI name, or the beginning of iSCSI names followed by `*`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InitiatorNamePattern(pub String);

impl<'de> Deserialize<'de> for InitiatorNamePattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parse = |text: &str| {
            let name = text.strip_suffix('*').unwrap_or(text);
            let known = |c: char| c.is_ascii_alphanumeric() || "-.:".contains(c) || !c.is_ascii();
            let is_name = !text.is_empty() && text.len() <= 224 && name.chars().all(known);
            is_name.then(|| Self(text.to_owned())).ok_or_else(|| {
                format!(
                    "`{text}` is not an initiator name{REMEDY}write a name such as \
                     \"iqn.2026-11.com.example:host\", or the beginning of names followed by `*`"
                )
            })
        };
        deserializer
            .deserialize_str(ParsedTextVisitor("an initiator name such as \"iqn.a:b\"", parse))
    }
}

/// An IP network, or one address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AccessNetworkSetting(pub target::NetworkPrefix);

impl<'de> Deserialize<'de> for AccessNetworkSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parse = |text: &str| {
            let remedy = "write one such as \"10.0.0.0/8\", \"fd00::/8\" or \"192.0.2.7\"";
            text.parse().map(Self).map_err(|error| format!("{error}{REMEDY}{remedy}"))
        };
        deserializer.deserialize_str(ParsedTextVisitor("a network such as \"10.0.0.0/8\"", parse))
    }
}

impl Serialize for AccessNetworkSetting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl Allow {
    /// Returns true if this rule admits every initiator that the rule `other` admits.
    pub fn covers(&self, other: &Self) -> bool {
        let same = |ours: &Option<String>, its: &Option<String>| ours.is_none() || ours == its;
        let names = match (&self.initiator, &other.initiator) {
            (None, _) => true,
            (Some(ours), Some(its)) => ours.covers(its),
            (Some(_), None) => false,
        };
        let networks = match (self.network, other.network) {
            (None, _) => true,
            (Some(ours), Some(its)) => ours.0.covers(its.0),
            (Some(_), None) => false,
        };
        names && networks && same(&self.user, &other.user)
    }
}

impl InitiatorNamePattern {
    /// Returns true if this pattern matches every initiator name that `other` matches.
    fn covers(&self, other: &Self) -> bool {
        match self.0.strip_suffix('*') {
            Some(begin) => other.0.strip_suffix('*').unwrap_or(&other.0).starts_with(begin),
            None => self == other,
        }
    }
}

/// A hash algorithm of CHAP. The algorithm numbers (CHAP_A) are 8 for SHA3-256, 7 for SHA-256, 6 for SHA-1 and 5 for
/// MD5.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
pub enum ChapHashSetting {
    #[serde(rename = "sha3-256")]
    Sha3,
    #[serde(rename = "sha-256")]
    Sha256,
    #[serde(rename = "sha-1")]
    Sha1,
    #[serde(rename = "md5")]
    Md5,
}

impl ChapHashSetting {
    /// All hash algorithms of CHAP, strongest first.
    pub const ALL: [Self; 4] = [Self::Sha3, Self::Sha256, Self::Sha1, Self::Md5];

    /// Converts the setting to the type of the crate `iscsi`.
    pub fn algorithm(self) -> ChapAlgorithm {
        match self {
            Self::Sha3 => ChapAlgorithm::Sha3,
            Self::Sha256 => ChapAlgorithm::Sha256,
            Self::Sha1 => ChapAlgorithm::Sha1,
            Self::Md5 => ChapAlgorithm::Md5,
        }
    }
}

/// A CHAP secret that cannot be read or used, with the path of its table in the settings.
pub struct UnusableCredential {
    pub key: KeyPath,
    pub message: String,
    pub remedy: String,
}

impl ChapCredentialSettings {
    /// Returns the name and the secret.
    ///
    /// # Panics
    /// If the secrets of the settings have not been read.
    pub fn credential(&self) -> Credential {
        let secret = self.secret.clone().expect("settings are used after their secrets were read");
        Credential { name: self.name.clone(), secret }
    }

    /// Reads a secret that the command line names: from `file` or from the variable `env`.
    pub fn at(name: &str, file: Option<&Path>, env: Option<&str>) -> Result<Self, Failure> {
        let (file, env) = (file.map(Path::to_owned), env.map(str::to_owned));
        let mut proof =
            Self { name: name.to_owned(), secret_file: file, secret_env: env, secret: None };
        let unusable = |(message, remedy)| Failure::settings(message).remedy(remedy);
        proof.read().map_err(unusable)?;
        Ok(proof)
    }

    fn read(&mut self) -> Result<(), (String, String)> {
        let found = secret::read(self.secret_file.as_deref(), self.secret_env.as_deref())?;
        // The settings name neither a file nor a variable. The rules of the settings report that as an error.
        let Some(SecretWithSource { secret: bytes, place }) = found else { return Ok(()) };
        let secret = ChapSecret::new(&bytes).map_err(|error| {
            let remedy = format!(
                "put {SECRET_MIN} to {SECRET_MAX} characters there, best random ones, as \
                 `forebay secret FILE` does"
            );
            (format!("{place}: {error}"), remedy)
        })?;
        self.secret = Some(secret);
        Ok(())
    }
}

impl Settings {
    /// Reads all secrets that the settings name, and fails if two of them must differ but are equal.
    pub(super) fn read_secrets(&mut self) -> Result<(), UnusableCredential> {
        for (key, proof) in self.proofs_mut() {
            let unusable = |(message, remedy)| UnusableCredential { key, message, remedy };
            proof.read().map_err(unusable)?;
        }
        let secrets: Vec<_> =
            self.proofs_mut().into_iter().map(|(key, p)| (key, p.secret.clone())).collect();
        let is_ours = |key: &KeyPath| key.to_string().ends_with("mutual");
        for (key, secret) in secrets.iter().filter(|(key, _)| is_ours(key)) {
            let other = secrets.iter().find(|(other, their)| !is_ours(other) && their == secret);
            if let Some((other, _)) = other {
                return Err(UnusableCredential {
                    key: key.clone(),
                    message: format!("the secret is also that of {other} (RFC 7143, 9.2.1)"),
                    remedy: "give each direction of mutual CHAP a secret of its own".into(),
                });
            }
        }
        for (at, user) in self.user.iter().enumerate() {
            let twin = self.user[..at].iter().find(|twin| twin.secret == user.secret);
            if let Some(twin) = twin {
                let (user, twin) = (&user.name, &twin.name);
                tracing::warn!(
                    user,
                    twin,
                    remedy = "create another secret with `forebay secret FILE`, and set \
                     `secret_file` of one of these two users to it",
                    "two users have the same secret: each can pose as the other"
                );
            }
        }
        Ok(())
    }

    /// Returns all CHAP credentials in the settings, each with its path in the file.
    pub(super) fn proofs_mut(&mut self) -> Vec<(KeyPath, &mut ChapCredentialSettings)> {
        let top = KeyPath::default();
        let mut proofs = Vec::new();
        for (index, user) in self.user.iter_mut().enumerate() {
            proofs.push((top.key("user").index(index), user));
        }
        if let Some(mutual) = &mut self.discovery.mutual {
            proofs.push((top.key("discovery").key("mutual"), mutual));
        }
        for (index, target) in self.target.iter_mut().enumerate() {
            let at = top.key("target").index(index);
            if let Some(mutual) = &mut target.mutual {
                proofs.push((at.key("mutual"), mutual));
            }
            for (index, unit) in target.unit.iter_mut().enumerate() {
                let at = at.key("unit").index(index).key("stack");
                for (index, layer) in unit.stack.iter_mut().enumerate() {
                    let Some((keys, remote)) = layer.remote_mut() else { continue };
                    let at = keys.iter().fold(at.index(index), |at, key| at.key(key));
                    proofs.extend(remote.user.as_mut().map(|user| (at.key("user"), user)));
                    proofs.extend(remote.mutual.as_mut().map(|proof| (at.key("mutual"), proof)));
                }
            }
        }
        proofs
    }

    /// Makes relative paths of secret files relative to `folder`.
    pub(super) fn resolve_secrets(&mut self, folder: &Path) {
        for (_, proof) in self.proofs_mut() {
            proof.secret_file = proof.secret_file.take().map(|file| folder.join(file));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn proof(file: &Path) -> ChapCredentialSettings {
        ChapCredentialSettings {
            secret_file: Some(file.to_owned()),
            ..ChapCredentialSettings::default()
        }
    }

    #[test]
    fn a_secret_is_in_a_file_that_only_its_owner_reads() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("alice");
        fs::write(&file, "twelve bytes\r\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let (message, remedy) = proof(&file).read().unwrap_err();
        assert!(message.ends_with("is open to others (mode 640)"), "{message}");
        assert_eq!(remedy, format!("chmod 600 {}", file.display()));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let mut alice = proof(&file);
        alice.read().unwrap_or_else(|(message, _)| panic!("{message}"));
        assert_eq!(alice.credential().secret, ChapSecret::new(b"twelve bytes").unwrap());
        assert!(!format!("{alice:?}").contains("twelve"));
        fs::write(&file, "too short\n").unwrap();
        let (message, _) = proof(&file).read().unwrap_err();
        assert!(message.ends_with("the secret has 9 bytes; CHAP requires 12 to 255"), "{message}");
        let (message, remedy) = proof(&folder.path().join("none")).read().unwrap_err();
        assert!(message.starts_with("cannot read the secret"), "{message}");
        assert!(remedy.starts_with("make it with `forebay secret"), "{remedy}");
    }

    #[test]
    fn a_secret_may_come_from_the_environment() {
        let env = |name: &str| ChapCredentialSettings {
            secret_env: Some(name.into()),
            ..ChapCredentialSettings::default()
        };
        // Use a variable that cargo sets for every test.
        let mut path = env("CARGO_MANIFEST_DIR");
        path.read().unwrap_or_else(|(message, _)| panic!("{message}"));
        let (message, _) = env("FOREBAY_NO_SUCH_SECRET").read().unwrap_err();
        assert_eq!(message, "there is no variable FOREBAY_NO_SUCH_SECRET with a secret");
    }
}
