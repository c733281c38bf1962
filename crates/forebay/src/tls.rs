//! TLS 1.3 with certificates at both ends: from files to what a handshake needs.

use std::path::Path;

use ring::digest::{SHA256, digest};
use transport::{Cause, Identity, Part, TlsClient, TlsServer, Unusable};
use zeroize::Zeroizing;

use crate::{
    failure::Failure,
    private_file::{self, Guard, Refusal},
};

/// A file, or a name, that cannot be used.
pub struct Wrong {
    /// Which of them.
    pub part: Part,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

impl From<Wrong> for Failure {
    fn from(Wrong { message, remedy, .. }: Wrong) -> Self {
        Self::settings(message).remedy(remedy)
    }
}

/// Where the user has named the address, the secrets and the certificates of a far volume. Remedies name these
/// options or keys.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Named {
    /// On the command line.
    Options,
    /// In the remote layer of a settings file.
    #[default]
    Settings,
}

/// Returns the remedy if a portal and this process do not trust each other.
pub fn remedy(cause: Cause, named: Named) -> String {
    let (ca, server_name, ours) = match named {
        Named::Options => ("--ca FILE", "--server-name NAME", "--certificate FILE --key FILE"),
        Named::Settings => ("`ca`", "`server_name`", "`certificate` and `key`"),
    };
    match cause {
        Cause::UnknownAuthority => {
            format!("name the authority that signed the target's certificate: {ca}")
        }
        Cause::OtherName => {
            format!("connect by a name that the target's certificate has, or give that name: {server_name}")
        }
        Cause::OutOfDate => {
            "make a new certificate for the target, or set the clock of this host".to_owned()
        }
        Cause::OursMissing => {
            format!("show a certificate of an authority in the portal's `client_ca`: {ours}")
        }
        Cause::OursRefused => format!(
            "show a certificate that is in date and of an authority in the portal's `client_ca`: {ours}"
        ),
        Cause::NoTls => format!("leave out {ca}, or name a portal with `tls`"),
        Cause::Other => {
            "see the reason in the target's events; both ends need TLS 1.3 and an algorithm in common"
                .to_owned()
        }
    }
}

/// The end that listens: whoever connects must have a certificate of `client_ca`.
pub fn server(certificate: &Path, key: &Path, client_ca: &Path) -> Result<TlsServer, Wrong> {
    let own = Own::read(certificate, key)?;
    let authorities = read(client_ca, Part::Authorities)?;
    let made = TlsServer::new(own.identity(), &authorities);
    made.map_err(|error| unusable(&error, Some((certificate, key)), client_ca))
}

/// The end that connects: the other must have a certificate of `ca` for `name`, or for its host.
pub fn client(
    own: Option<(&Path, &Path)>,
    ca: &Path,
    name: Option<&str>,
) -> Result<TlsClient, Wrong> {
    let ours = own.map(|(certificate, key)| Own::read(certificate, key)).transpose()?;
    let authorities = read(ca, Part::Authorities)?;
    let made = TlsClient::new(ours.as_ref().map(Own::identity), &authorities, name);
    made.map_err(|error| unusable(&error, own, ca))
}

/// SHA-256 of the certificates in a file, in an order of their own: the same for the same certificates, whatever
/// else is said in there.
pub fn fingerprint(authorities: &Path) -> Result<String, Wrong> {
    let text = read(authorities, Part::Authorities)?;
    let text = String::from_utf8_lossy(&text);
    let mut certificates: Vec<String> = text
        .split("-----BEGIN CERTIFICATE-----")
        .skip(1)
        .filter_map(|rest| rest.split_once("-----END"))
        .map(|(body, _)| body.split_whitespace().collect())
        .collect();
    certificates.sort();
    certificates.dedup();
    let digest = digest(&SHA256, certificates.join("\n").as_bytes());
    Ok(digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The texts of a certificate and its key.
struct Own {
    certificate: Zeroizing<Vec<u8>>,
    key: Zeroizing<Vec<u8>>,
}

impl Own {
    fn read(certificate: &Path, key: &Path) -> Result<Self, Wrong> {
        Ok(Self { certificate: read(certificate, Part::Certificate)?, key: read(key, Part::Key)? })
    }

    fn identity(&self) -> Identity<'_> {
        Identity { certificate: &self.certificate, key: &self.key }
    }
}

/// All authorities that a system trusts have about 250 KiB; longer files hold something else.
const FILE_BYTES: u64 = 1 << 20;

/// What PEM files should hold.
const REMEDY: &str = "name a PEM file; certificate and key must belong together";

/// A key must be one that nobody else can read.
fn read(path: &Path, part: Part) -> Result<Zeroizing<Vec<u8>>, Wrong> {
    let (what, guard) = match part {
        Part::Key => ("the key", Guard::Secret),
        _ => ("the certificates in", Guard::Public),
    };
    private_file::read(path, what, guard, FILE_BYTES).map_err(|refusal| match refusal {
        Refusal::Unreadable(error) => Wrong {
            part,
            message: format!("cannot use {}: {error}", path.display()),
            remedy: REMEDY.into(),
        },
        Refusal::Unfit(message, remedy) => Wrong { part, message, remedy },
    })
}

fn unusable(error: &Unusable, own: Option<(&Path, &Path)>, authorities: &Path) -> Wrong {
    let part = error.part;
    let file = match (part, own) {
        (Part::Certificate, Some((certificate, _))) => certificate.display(),
        (Part::Key, Some((_, key))) => key.display(),
        (Part::Name, _) => {
            let remedy = "write a host name or an IP address, as the certificate has it";
            return Wrong { part, message: error.to_string(), remedy: remedy.into() };
        }
        _ => authorities.display(),
    };
    Wrong { part, message: format!("cannot use {file}: {error}"), remedy: REMEDY.into() }
}
