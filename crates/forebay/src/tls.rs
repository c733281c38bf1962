//! TLS 1.3 with certificates at both ends: files to what a handshake needs.

use std::{os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig,
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::WebPkiClientVerifier,
        version::TLS13,
    },
};

use crate::failure::Failure;

/// A certificate, those above it, and its key.
struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// The end that listens: whoever connects must have a certificate of `client_ca`.
pub fn acceptor(certificate: &Path, key: &Path, client_ca: &Path) -> Result<TlsAcceptor, Failure> {
    let Identity { chain, key } = identity(certificate, key)?;
    let roots = Arc::new(authorities(client_ca)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(Failure::new)?
        .with_client_cert_verifier(verifier.map_err(|error| unusable(client_ca, &error))?)
        .with_single_cert(chain, key)
        .map_err(|error| unusable(certificate, &error))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The end that connects: the other must have a certificate of `ca`.
pub fn connector(certificate: &Path, key: &Path, ca: &Path) -> Result<TlsConnector, Failure> {
    let Identity { chain, key } = identity(certificate, key)?;
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(Failure::new)?
        .with_root_certificates(authorities(ca)?)
        .with_client_auth_cert(chain, key)
        .map_err(|error| unusable(certificate, &error))?;
    Ok(TlsConnector::from(Arc::new(config)))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn identity(certificate: &Path, key: &Path) -> Result<Identity, Failure> {
    let mode = std::fs::metadata(key).map_err(|error| unusable(key, &error))?.permissions().mode();
    if mode & 0o077 != 0 {
        let (shown, mode) = (key.display(), mode & 0o777);
        return Err(Failure::settings(format!(
            "the key {shown} is open to others (mode {mode:03o})"
        ))
        .remedy(format!("chmod 600 {shown}")));
    }
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
    Ok(Identity { chain, key })
}

fn authorities(path: &Path) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| unusable(path, &error))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let found =
        CertificateDer::pem_file_iter(path).and_then(|found| found.collect::<Result<Vec<_>, _>>());
    match found {
        Ok(found) if found.is_empty() => Err(unusable(path, &"there is no certificate in it")),
        Ok(found) => Ok(found),
        Err(error) => Err(unusable(path, &error)),
    }
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::settings(format!("cannot use {}: {error}", path.display()))
        .remedy("name a PEM file; certificate and key must belong together")
}
