//! Creates TLS certificates with openssl, for tests with both ends on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Time limit of one openssl command. openssl makes a key on an elliptic curve in much less time.
const LIMIT: Duration = Duration::from_secs(30);

/// A certificate authority, and one certificate that it issued for 127.0.0.1. The certificate is
/// valid for server and client.
pub struct Certificates {
    /// The certificate of the authority (PEM).
    pub authority: PathBuf,
    /// Path of the certificate that both ends of a connection use (PEM).
    pub certificate: PathBuf,
    /// The private key of `certificate` (PEM).
    pub key: PathBuf,
}

impl Certificates {
    /// Makes the authority and the certificate in a folder.
    pub fn make(folder: &Path) -> Result<Certificates> {
        let new = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        for command in [
            format!("req -x509 {new} -days 2 -subj /CN=authority -keyout ca.key -out ca.pem"),
            format!(
                "req -new {new} -subj /CN=end -addext subjectAltName=IP:127.0.0.1 \
                 -keyout end.key -out end.csr"
            ),
            "x509 -req -in end.csr -CA ca.pem -CAkey ca.key -days 2 -copy_extensions copy -out end.pem"
                .to_owned(),
        ] {
            let mut openssl = Command::new("openssl");
            openssl.args(command.split_whitespace()).current_dir(folder);
            let done = program::run(&mut openssl, LIMIT)
                .context("cannot run openssl (Debian package openssl)")?;
            ensure!(done.success(), "openssl {command}: {}", done.tail(5));
        }
        Ok(Certificates {
            authority: folder.join("ca.pem"),
            certificate: folder.join("end.pem"),
            key: folder.join("end.key"),
        })
    }
}
