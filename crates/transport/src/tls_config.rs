//! Who proves what by certificates: TLS 1.3 at either end, from PEM texts to configurations.
//!
//! iSCSI over TLS is ours: no standard says how they go together. Both ends do a handshake first,
//! and what follows are the bytes of an ordinary iSCSI connection.

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

/// A certificate, those above it, and its key: PEM texts.
#[derive(Clone, Copy)]
pub struct TlsIdentity<'a> {
    /// The own certificate first.
    pub certificate: &'a [u8],
    /// PKCS #8, PKCS #1 or SEC 1, not encrypted.
    pub key: &'a [u8],
}

/// Which of the texts cannot be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TlsMaterial {
    /// The own certificate, or it does not belong to the key.
    Certificate,
    /// The own key.
    Key,
    /// Those whose certificates are trusted.
    Authorities,
    /// The name that the server has to prove.
    Name,
}

/// Why no TLS can be made of these texts.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct TlsMaterialError {
    /// Where the fault is.
    pub part: TlsMaterial,
    /// What is wrong with it.
    pub reason: String,
}

/// The end that is connected to: it has a certificate, and whoever connects must have one, too.
#[derive(Clone, Debug)]
pub struct TlsServer {
    config: Arc<ServerConfig>,
    /// Certificate and authorities as they were given: two with the same are the same.
    texts: Arc<[Vec<u8>; 2]>,
}

/// The end that connects. Clones share what [`TlsClient::renew`] changes.
#[derive(Clone, Debug)]
pub struct TlsClient {
    /// Read once for each connection.
    config: Arc<RwLock<Arc<ClientConfig>>>,
    name: Option<ServerName<'static>>,
}

impl TlsServer {
    /// Takes in who has a certificate of one of the `authorities` (PEM), directly or through those
    /// that it brings.
    ///
    /// # Errors
    /// If one of the texts holds something else, or if certificate and key do not belong together.
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
        // Who comes back proves himself anew: an authority that is no longer trusted lets nobody
        // in, and nothing is kept for those who are away.
        config.send_tls13_tickets = 0;
        let texts = Arc::new([own.certificate.to_vec(), authorities.to_vec()]);
        Ok(Self { config: Arc::new(config), texts })
    }

    /// As rustls takes it.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }

    /// The handshake on a connection that was accepted. Takes as long as the peer does: the caller
    /// bounds it. A stranger makes us hold at most about 40 KiB.
    ///
    /// # Errors
    /// What the socket says; [`io::ErrorKind::UnexpectedEof`] if the peer closes;
    /// [`io::ErrorKind::InvalidData`] if it does not get through, after it was told why.
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
    /// Connects to who has a certificate of one of the `authorities` (PEM) for `name`, a host name
    /// or an IP address; without it, for the host that is connected to. `own` is shown to those
    /// who ask for it, as our portals do.
    ///
    /// # Errors
    /// If one of the texts holds something else, or if certificate and key do not belong together.
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

    /// As rustls takes it.
    #[must_use]
    pub fn config(&self) -> Arc<ClientConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From the next connection on, this one and its clones show and trust what `other` does.
    pub fn renew(&self, other: &Self) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = other.config();
    }

    /// The name that a server at this host has to prove.
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

    /// The handshake on a connection to `host` (IPv6 without brackets). Takes as long as the peer
    /// does: the caller bounds it. Whether the server takes our certificate is known only when it
    /// answers what is sent then.
    ///
    /// # Errors
    /// As [`TlsServer::accept`].
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<ConnectionStream> {
        let name = self.name(host).map_err(io::Error::other)?;
        let session = ClientConnection::new(self.config(), name).map_err(io::Error::other)?;
        Ok(ConnectionStream::Tls(Box::new(Secured::handshake(stream, session.into()).await?)))
    }
}

/// AES with 128 bits first, which is enough for anybody and costs a fifth less than with 256.
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
            pem::Error::NoItemsFound => TlsMaterial::Key.unusable(&"there is no private key in it"),
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
        return Err(part.unusable(&"there is no certificate in it"));
    }
    Ok(found)
}
