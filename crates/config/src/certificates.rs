//! Creates TLS 1.3 configurations from certificate files, for accepting and for connecting.

use std::path::Path;

use control::Failure;
use ring::digest::{SHA256, digest};
use transport::{DistrustCause, TlsClient, TlsIdentity, TlsMaterial, TlsMaterialError, TlsServer};
use zeroize::Zeroizing;

use crate::private_file::{self, PrivateFileError, PrivateFileRule};

/// A file or a host name that cannot be used for TLS.
pub struct TlsInputError {
    pub part: TlsMaterial,
    pub message: String,
    pub remedy: String,
}

impl From<TlsInputError> for Failure {
    fn from(TlsInputError { message, remedy, .. }: TlsInputError) -> Self {
        Self::settings(message).remedy(remedy)
    }
}

/// Where the user has named the address, the secrets and the certificates of a far volume. Remedies name command-line
/// options or settings keys accordingly.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum FarSettingsOrigin {
    Options,
    #[default]
    Settings,
}

/// Returns the remedy for a portal and a client that do not trust each other's certificate.
pub fn remedy(cause: DistrustCause, named: FarSettingsOrigin) -> String {
    let (ca, server_name, ours) = match named {
        FarSettingsOrigin::Options => {
            ("--ca FILE", "--server-name NAME", "--certificate FILE --key FILE")
        }
        FarSettingsOrigin::Settings => ("`ca`", "`server_name`", "`certificate` and `key`"),
    };
    match cause {
        DistrustCause::UnknownAuthority => {
            format!("name the authority that signed the target's certificate: {ca}")
        }
        DistrustCause::OtherName => {
            format!("connect by a name that the target's certificate has, or give that name: {server_name}")
        }
        DistrustCause::OutOfDate => {
            "make a new certificate for the target, or set the clock of this host".to_owned()
        }
        DistrustCause::OursMissing => {
            format!("show a certificate of an authority in the portal's `client_ca`: {ours}")
        }
        DistrustCause::OursRefused => format!(
            "show a certificate that is in date and of an authority in the portal's `client_ca`: {ours}"
        ),
        DistrustCause::NoTls => format!("leave out {ca}, or name a portal with `tls`"),
        DistrustCause::Other => {
            "see the reason in the target's events; both ends need TLS 1.3 and an algorithm in common"
                .to_owned()
        }
    }
}

/// Returns the configuration of the accepting end, which requires a client certificate that `client_ca` has issued.
pub fn server(
    certificate: &Path,
    key: &Path,
    client_ca: &Path,
) -> Result<TlsServer, TlsInputError> {
    let own = TlsOwnIdentity::read(certificate, key)?;
    let authorities = read(client_ca, TlsMaterial::Authorities)?;
    let made = TlsServer::new(own.identity(), &authorities);
    made.map_err(|error| unusable(&error, Some((certificate, key)), client_ca))
}

/// Returns the configuration of the connecting end. The server's certificate must be issued by `ca`, for the name
/// `name`; if that is `None`, for the host of the connection.
pub fn client(
    own: Option<(&Path, &Path)>,
    ca: &Path,
    name: Option<&str>,
) -> Result<TlsClient, TlsInputError> {
    let ours = own.map(|(certificate, key)| TlsOwnIdentity::read(certificate, key)).transpose()?;
    let authorities = read(ca, TlsMaterial::Authorities)?;
    let made = TlsClient::new(ours.as_ref().map(TlsOwnIdentity::identity), &authorities, name);
    made.map_err(|error| unusable(&error, own, ca))
}

/// Returns the SHA-256 values of the certificates in a file, sorted. The result does not depend on the order of the
/// certificates or on other text in the file.
pub fn fingerprint(authorities: &Path) -> Result<String, TlsInputError> {
    let text = read(authorities, TlsMaterial::Authorities)?;
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

/// The certificate chain of this end with its private key, as PEM texts.
struct TlsOwnIdentity {
    certificate: Zeroizing<Vec<u8>>,
    key: Zeroizing<Vec<u8>>,
}

impl TlsOwnIdentity {
    fn read(certificate: &Path, key: &Path) -> Result<Self, TlsInputError> {
        Ok(Self {
            certificate: read(certificate, TlsMaterial::Certificate)?,
            key: read(key, TlsMaterial::Key)?,
        })
    }

    fn identity(&self) -> TlsIdentity<'_> {
        TlsIdentity { certificate: &self.certificate, key: &self.key }
    }
}

/// Maximum size of a PEM file. The authorities of a whole Linux system have about 250 KiB; a longer file is not a list
/// of certificates.
const FILE_BYTES: u64 = 1 << 20;

const REMEDY: &str = "name a PEM file; certificate and key must belong together";

/// Reads a PEM file. A private key is refused if another user can read it.
fn read(path: &Path, part: TlsMaterial) -> Result<Zeroizing<Vec<u8>>, TlsInputError> {
    let (what, guard) = match part {
        TlsMaterial::Key => ("the key", PrivateFileRule::Secret),
        _ => ("the certificates in", PrivateFileRule::Public),
    };
    private_file::read(path, what, guard, FILE_BYTES).map_err(|refusal| match refusal {
        PrivateFileError::Unreadable(error) => TlsInputError {
            part,
            message: format!("cannot use {}: {error}", path.display()),
            remedy: REMEDY.into(),
        },
        PrivateFileError::Unfit(message, remedy) => TlsInputError { part, message, remedy },
    })
}

fn unusable(
    error: &TlsMaterialError,
    own: Option<(&Path, &Path)>,
    authorities: &Path,
) -> TlsInputError {
    let part = error.part;
    let file = match (part, own) {
        (TlsMaterial::Certificate, Some((certificate, _))) => certificate.display(),
        (TlsMaterial::Key, Some((_, key))) => key.display(),
        (TlsMaterial::Name, _) => {
            let remedy = "write a host name or an IP address, as the certificate has it";
            return TlsInputError { part, message: error.to_string(), remedy: remedy.into() };
        }
        _ => authorities.display(),
    };
    TlsInputError { part, message: format!("cannot use {file}: {error}"), remedy: REMEDY.into() }
}
