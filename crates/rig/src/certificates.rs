//! Certificates for both ends of TLS on this machine, made by openssl.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Three keys on a curve take no longer.
const LIMIT: Duration = Duration::from_secs(30);

/// An authority, and one certificate that it issued for 127.0.0.1, good for both ends.
pub struct Certificates {
    /// The authority's own certificate (PEM).
    pub authority: PathBuf,
    /// The certificate (PEM).
    pub certificate: PathBuf,
    /// Its key (PEM).
    pub key: PathBuf,
}

impl Certificates {
    /// Makes them in a folder.
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
                .context("openssl does not run (Debian package openssl)")?;
            ensure!(done.success(), "openssl {command}: {}", done.tail(5));
        }
        Ok(Certificates {
            authority: folder.join("ca.pem"),
            certificate: folder.join("end.pem"),
            key: folder.join("end.key"),
        })
    }
}
