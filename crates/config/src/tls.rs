//! Settings of TLS: the certificate of this end and the authorities that it trusts. The files are read together with
//! the settings.

use std::path::PathBuf;

use control::Failure;
use serde::Deserialize;
use transport::{TlsClient, TlsServer};

use crate::certificates::{self, TlsInputError};

/// The table `[portal.tls]`: the certificate of a portal, and the authorities of initiators.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct PortalTls {
    /// PEM file with the certificate of the portal, followed by the intermediate certificates up to its authority.
    /// `forebay reload` reads it again: do so before the certificate expires. Required.
    pub certificate: PathBuf,
    /// PEM file with the private key of the certificate, mode 0600. Required.
    pub key: PathBuf,
    /// PEM file with the authorities that issue the certificates of initiators. Every holder of such a certificate may
    /// connect; name an authority of your own, not a public one. Required.
    pub client_ca: PathBuf,
    #[serde(skip)]
    loaded: Option<TlsServer>,
}

/// The table `[target.unit.stack.remote.tls]`: TLS of a remote layer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteTls {
    /// PEM file with the authorities that issue the certificate of the portal. Required.
    pub ca: PathBuf,
    /// Host name or IP address that the portal's certificate must have. Needed if `url` names another one, such as an
    /// address. If left out: the host of the connection.
    pub server_name: Option<String>,
    /// PEM file with the certificate of this process. A portal of Forebay requires one. Needs `key`.
    pub certificate: Option<PathBuf>,
    /// PEM file with the private key of this certificate, mode 0600. Needs `certificate`.
    pub key: Option<PathBuf>,
    /// TLS configuration made of these files, which the sessions of the layer use.
    #[serde(skip)]
    pub(super) loaded: Option<TlsClient>,
    /// TLS configuration that the last reload has read, while sessions still use an older one.
    #[serde(skip)]
    pub(super) fresh: Option<TlsClient>,
}

impl PartialEq for RemoteTls {
    /// Compare only the names of the files; [`Settings::keep_certificates`] handles changed content.
    fn eq(&self, other: &Self) -> bool {
        let named = |tls: &Self| {
            (tls.ca.clone(), tls.server_name.clone(), tls.certificate.clone(), tls.key.clone())
        };
        named(self) == named(other)
    }
}

impl PortalTls {
    /// Returns the TLS configuration of the portal.
    ///
    /// # Panics
    /// If the files of the settings have not been read.
    pub fn server(&self) -> TlsServer {
        self.loaded.clone().expect("settings are used after their files were read")
    }

    /// Returns a fingerprint of the set of authorities in `client_ca`, which is the same on every machine.
    pub fn authorities(&self) -> Result<String, Failure> {
        Ok(certificates::fingerprint(&self.client_ca)?)
    }

    /// Reads these files and creates the TLS configuration for [`Self::server`].
    pub(super) fn read(&mut self) -> Result<(), TlsInputError> {
        self.loaded = Some(certificates::server(&self.certificate, &self.key, &self.client_ca)?);
        Ok(())
    }
}

impl RemoteTls {
    /// Reads the TLS files that the command line names.
    pub fn of(
        ca: PathBuf,
        server_name: Option<String>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let mut tls = Self { ca, server_name, certificate, key, ..Self::default() };
        tls.read()?;
        Ok(tls)
    }

    /// Returns the TLS configuration of the session.
    ///
    /// # Panics
    /// If the files of the settings have not been read.
    pub fn client(&self) -> TlsClient {
        self.loaded.clone().expect("settings are used after their files were read")
    }

    /// Reads these files and creates the TLS configuration for [`Self::client`].
    pub(super) fn read(&mut self) -> Result<(), TlsInputError> {
        let own = self.certificate.as_deref().zip(self.key.as_deref());
        self.loaded = Some(certificates::client(own, &self.ca, self.server_name.as_deref())?);
        Ok(())
    }
}
