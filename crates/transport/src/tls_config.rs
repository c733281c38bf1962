//! The TLS 1.3 configuration of either end, made from PEM texts.
//!
//! No standard defines iSCSI over TLS; this scheme is Forebay's own. Both ends perform a handshake
//! first, and then exchange the bytes of an ordinary iSCSI connection.

use std::{
    io,
    sync::{Arc, PoisonError, RwLock},
};

use rustls::{
    CipherSuite, ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection,
    client::Resumption,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem, pem::PemObject},
    server::WebPkiClientVerifier,
    version::TLS13,
};
use tokio::net::TcpStream;

use crate::{stream::ConnectionStream, tls_stream::Secured};

/// The certificate chain of this end and its private key, as PEM texts.
#[derive(Clone, Copy)]
pub struct TlsIdentity<'a> {
    /// The certificate of this end, followed by those of its issuers.
    pub certificate: &'a [u8],
    /// The private key: PKCS #8, PKCS #1 or SEC 1, not encrypted.
    pub key: &'a [u8],
}

/// The part of a TLS configuration that cannot be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TlsMaterial {
    /// The certificate of this end is unusable, or does not belong to its private key.
    Certificate,
    /// The private key of this end is unusable.
    Key,
    /// The certificates of the trusted authorities are unusable.
    Authorities,
    /// The name that the server must prove is unusable.
    Name,
}

/// The reason why a TLS configuration cannot be made.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct TlsMaterialError {
    pub part: TlsMaterial,
    pub reason: String,
}

/// The TLS settings of an end that accepts connections. Both ends must have certificates.
#[derive(Clone, Debug)]
pub struct TlsServer {
    config: Arc<ServerConfig>,
    /// The PEM texts of the certificate and of the authorities, for comparison: two servers with
    /// the same texts are equal.
    texts: Arc<[Vec<u8>; 2]>,
}

/// The TLS settings of an end that connects. All clones share one configuration, so [`TlsClient::renew`] changes all of
/// them.
#[derive(Clone, Debug)]
pub struct TlsClient {
    /// The configuration, which is read once for each connection.
    config: Arc<RwLock<Arc<ClientConfig>>>,
    name: Option<ServerName<'static>>,
}

impl TlsServer {
    /// Makes a server that accepts clients whose certificates were issued by one of the
    /// `authorities` (PEM), directly or through intermediate certificates that the client sends.
    ///
    /// # Errors
    /// If a text cannot be used, or if certificate and key do not belong together.
    pub fn new(own: TlsIdentity<'_>, authorities: &[u8]) -> Result<Self, TlsMaterialError> {
        let (chain, key) = own.parse()?;
        let wrong = |error: &dyn std::fmt::Display| TlsMaterial::Authorities.unusable(error);
        let roots = Arc::new(roots(authorities)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| TlsMaterial::Certificate.unusable(&error))?
            .with_client_cert_verifier(verifier.map_err(|error| wrong(&error))?)
            .with_single_cert(chain, key)
            .map_err(|error| TlsMaterial::Certificate.unusable(&error))?;
        // Disable session resumption. Every client must then authenticate in each handshake, so
        // that certificates of an authority which is no longer trusted are refused. No state is
        // kept for absent clients either.
        config.send_tls13_tickets = 0;
        let texts = Arc::new([own.certificate.to_vec(), authorities.to_vec()]);
        Ok(Self { config: Arc::new(config), texts })
    }

    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }

    /// Performs the handshake of an accepted connection. The peer determines how long the handshake
    /// takes, so the caller must set a time limit. An unauthenticated peer can make this end hold
    /// about 40 KiB at most.
    ///
    /// # Errors
    /// The errors of the socket; [`io::ErrorKind::UnexpectedEof`] if the peer closes;
    /// [`io::ErrorKind::InvalidData`] if the handshake fails, after the reason was sent to the
    /// peer.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<ConnectionStream> {
        let session = ServerConnection::new(self.config.clone()).map_err(io::Error::other)?;
        Ok(ConnectionStream::Tls(Box::new(Secured::handshake(stream, session.into()).await?)))
    }
}

impl PartialEq for TlsServer {
    fn eq(&self, other: &Self) -> bool {
        self.texts == other.texts
    }
}

impl Eq for TlsServer {}

impl TlsClient {
    /// Makes a client that accepts servers whose certificates were issued by one of the
    /// `authorities` (PEM) for `name`, a host name or an IP address. Without `name`, the
    /// certificate must be for the host to which the client connects. The client sends `own` to
    /// servers that request a certificate, as Forebay's portals do.
    ///
    /// # Errors
    /// If a text cannot be used, or if certificate and key do not belong together.
    pub fn new(
        own: Option<TlsIdentity<'_>>,
        authorities: &[u8],
        name: Option<&str>,
    ) -> Result<Self, TlsMaterialError> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| TlsMaterial::Certificate.unusable(&error))?
            .with_root_certificates(roots(authorities)?);
        let mut config = match own {
            None => config.with_no_client_auth(),
            Some(own) => {
                let (chain, key) = own.parse()?;
                let config = config.with_client_auth_cert(chain, key);
                config.map_err(|error| TlsMaterial::Certificate.unusable(&error))?
            }
        };
        config.resumption = Resumption::disabled();
        let name = name.map(|name| ServerName::try_from(name.to_owned()));
        let name = name.transpose().map_err(|error| TlsMaterial::Name.unusable(&error))?;
        Ok(Self { config: Arc::new(RwLock::new(Arc::new(config))), name })
    }

    #[must_use]
    pub fn config(&self) -> Arc<ClientConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes this client and its clones use the configuration of `other` from the next connection
    /// on.
    pub fn renew(&self, other: &Self) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = other.config();
    }

    /// Returns the name that a server at this host must prove.
    ///
    /// # Errors
    /// If the host is neither a name nor an IP address.
    pub fn name(&self, host: &str) -> Result<ServerName<'static>, TlsMaterialError> {
        match &self.name {
            Some(name) => Ok(name.clone()),
            None => ServerName::try_from(host.to_owned())
                .map_err(|error| TlsMaterial::Name.unusable(&format!("{host}: {error}"))),
        }
    }

    /// Performs the handshake of a connection to `host` (IPv6 without brackets). The peer
    /// determines how long the handshake takes, so the caller must set a time limit. The handshake
    /// ends before the server has checked our certificate. If the server refuses it, reading the
    /// first response returns that error.
    ///
    /// # Errors
    /// The errors of [`TlsServer::accept`].
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<ConnectionStream> {
        let name = self.name(host).map_err(io::Error::other)?;
        let session = ClientConnection::new(self.config(), name).map_err(io::Error::other)?;
        Ok(ConnectionStream::Tls(Box::new(Secured::handshake(stream, session.into()).await?)))
    }
}

/// Returns the cryptography of the crate ring, with AES-128 as the first choice. AES-128 is strong
/// enough and needs a fifth less processor time than AES-256.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    let rank = |suite: CipherSuite| suite != CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| rank(suite.suite()));
    Arc::new(provider)
}

impl TlsMaterial {
    fn unusable(self, reason: &dyn std::fmt::Display) -> TlsMaterialError {
        TlsMaterialError { part: self, reason: reason.to_string() }
    }
}

impl TlsIdentity<'_> {
    fn parse(
        &self,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsMaterialError> {
        let chain = certificates(self.certificate, TlsMaterial::Certificate)?;
        let key = PrivateKeyDer::from_pem_slice(self.key).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsMaterial::Key.unusable(&"it contains no private key"),
            error => TlsMaterial::Key.unusable(&error),
        })?;
        Ok((chain, key))
    }
}

fn roots(authorities: &[u8]) -> Result<RootCertStore, TlsMaterialError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authorities, TlsMaterial::Authorities)? {
        roots.add(certificate).map_err(|error| TlsMaterial::Authorities.unusable(&error))?;
    }
    Ok(roots)
}

fn certificates(
    text: &[u8],
    part: TlsMaterial,
) -> Result<Vec<CertificateDer<'static>>, TlsMaterialError> {
    let found = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| part.unusable(&error))?;
    if found.is_empty() {
        return Err(part.unusable(&"it contains no certificate"));
    }
    Ok(found)
}
