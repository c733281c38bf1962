//! Settings of TLS: the certificate of this end and the trusted authorities. The files are read together with the
//! settings.

use std::path::PathBuf;

use control::Failure;
use serde::Deserialize;
use transport::{TlsClient, TlsServer};

use crate::certificates::{self, TlsInputError};

/// The certificate of a portal, and the authorities of initiators.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct PortalTls {
    /// The certificate of the portal, followed by the intermediate ones up to its authority: a PEM file. Required.
    pub certificate: PathBuf,
    /// The key of the certificate: a PEM file that only its owner may be able to read. Required.
    pub key: PathBuf,
    /// The authorities that issue the certificates of initiators. Required.
    pub client_ca: PathBuf,
    #[serde(skip)]
    loaded: Option<TlsServer>,
}

/// TLS of a remote layer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteTls {
    /// The authorities that issue the certificate of the portal. Required.
    pub ca: PathBuf,
    /// The host name or IP address in that certificate. If left out: the host of the connection.
    pub server_name: Option<String>,
    /// Our certificate. A portal of Forebay requires one.
    pub certificate: Option<PathBuf>,
    /// The key of our certificate, which only its owner may be able to read.
    pub key: Option<PathBuf>,
    /// The configuration of sessions.
    #[serde(skip)]
    pub(super) loaded: Option<TlsClient>,
    /// The configuration that a reload has read, if the sessions are older.
    #[serde(skip)]
    pub(super) fresh: Option<TlsClient>,
}

impl PartialEq for RemoteTls {
    /// Returns true if both name the same files; for their content see [`Settings::keep_certificates`].
    fn eq(&self, other: &Self) -> bool {
        let named = |tls: &Self| {
            (tls.ca.clone(), tls.server_name.clone(), tls.certificate.clone(), tls.key.clone())
        };
        named(self) == named(other)
    }
}

impl PortalTls {
    /// Returns the configuration of the portal.
    ///
    /// # Panics
    /// If the files of the settings have not been read.
    pub fn server(&self) -> TlsServer {
        self.loaded.clone().expect("settings are used after their files were read")
    }

    /// Returns a number that identifies the set of authorities in `client_ca`, on every machine.
    pub fn authorities(&self) -> Result<String, Failure> {
        Ok(certificates::fingerprint(&self.client_ca)?)
    }

    /// Reads the files.
    pub(super) fn read(&mut self) -> Result<(), TlsInputError> {
        self.loaded = Some(certificates::server(&self.certificate, &self.key, &self.client_ca)?);
        Ok(())
    }
}

impl RemoteTls {
    /// Reads the files that the command line names.
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

    /// Returns the configuration of the session.
    ///
    /// # Panics
    /// If the files of the settings have not been read.
    pub fn client(&self) -> TlsClient {
        self.loaded.clone().expect("settings are used after their files were read")
    }

    /// Reads the files.
    pub(super) fn read(&mut self) -> Result<(), TlsInputError> {
        let own = self.certificate.as_deref().zip(self.key.as_deref());
        self.loaded = Some(certificates::client(own, &self.ca, self.server_name.as_deref())?);
        Ok(())
    }
}
