//! Settings of TLS: the certificate of this end and the trusted authorities. The files are read together with the
//! settings.

use std::path::{Path, PathBuf};

use control::Failure;
use serde::Deserialize;
use transport::{TlsClient, TlsMaterial, TlsServer};

use super::{Layer, Settings, access::UnusableCredential, problem::KeyPath};
use crate::tls::{self, TlsInputError};

/// The certificate of a portal, and the authorities of initiators.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct PortalTls {
    /// Its certificate, followed by intermediate ones; required.
    pub certificate: PathBuf,
    /// Its key, which only its owner may read; required.
    pub key: PathBuf,
    /// The authorities that issue the certificates of initiators; required.
    pub client_ca: PathBuf,
    #[serde(skip)]
    loaded: Option<TlsServer>,
}

/// TLS of a remote layer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteTls {
    /// The authorities that issue the target's certificate; required.
    pub ca: PathBuf,
    /// The name in its certificate; if left out, the host to which the layer connects.
    pub server_name: Option<String>,
    /// Our certificate.
    pub certificate: Option<PathBuf>,
    /// Its key, which only its owner may read.
    pub key: Option<PathBuf>,
    /// The configuration of sessions.
    #[serde(skip)]
    loaded: Option<TlsClient>,
    /// The configuration that a reload has read, if the sessions are older.
    #[serde(skip)]
    fresh: Option<TlsClient>,
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
        Ok(tls::fingerprint(&self.client_ca)?)
    }

    fn read(&mut self) -> Result<(), TlsInputError> {
        self.loaded = Some(tls::server(&self.certificate, &self.key, &self.client_ca)?);
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

    fn read(&mut self) -> Result<(), TlsInputError> {
        let own = self.certificate.as_deref().zip(self.key.as_deref());
        self.loaded = Some(tls::client(own, &self.ca, self.server_name.as_deref())?);
        Ok(())
    }
}

impl Settings {
    /// Reads all certificates and keys that the settings name.
    pub(super) fn read_certificates(&mut self) -> Result<(), UnusableCredential> {
        for (at, portal) in self.portal_tls_mut() {
            portal.read().map_err(|wrong| at_its_key(&at, wrong, "client_ca"))?;
        }
        for (at, remote) in self.remote_tls_mut() {
            remote.read().map_err(|wrong| at_its_key(&at, wrong, "ca"))?;
        }
        Ok(())
    }

    /// Lets remote layers that are unchanged since `old` keep the configuration of their sessions, until
    /// [`Settings::renew_certificates`].
    pub fn keep_certificates(&mut self, old: &Self) {
        for target in &mut self.target {
            let before = old.target.iter().find(|before| before.name == target.name);
            for unit in &mut target.unit {
                let mut units = before.iter().flat_map(|before| &before.unit);
                let before = units.find(|before| before.lun == unit.lun);
                let layers = before.iter().flat_map(|before| &before.stack);
                for pair in unit.stack.iter_mut().zip(layers) {
                    let (Layer::Remote(new), Layer::Remote(old)) = pair else { continue };
                    let (Some(new), Some(old)) = (&mut new.tls, &old.tls) else { continue };
                    if new == old {
                        new.fresh = std::mem::replace(&mut new.loaded, old.loaded.clone());
                    }
                }
            }
        }
    }

    /// Lets the sessions of remote layers use the certificates that were read with these settings, from their next
    /// connections on.
    pub fn renew_certificates(&self) {
        let units = self.target.iter().flat_map(|target| &target.unit);
        for layer in units.flat_map(|unit| &unit.stack) {
            let Layer::Remote(remote) = layer else { continue };
            let Some(tls) = &remote.tls else { continue };
            if let (Some(kept), Some(fresh)) = (&tls.loaded, &tls.fresh) {
                kept.renew(fresh);
            }
        }
    }

    /// Makes relative paths of certificates relative to this folder.
    pub(super) fn resolve_certificates(&mut self, folder: &Path) {
        for (_, tls) in self.portal_tls_mut() {
            for path in [&mut tls.certificate, &mut tls.key, &mut tls.client_ca] {
                *path = folder.join(&path);
            }
        }
        for (_, tls) in self.remote_tls_mut() {
            tls.ca = folder.join(&tls.ca);
            for path in [&mut tls.certificate, &mut tls.key].into_iter().flatten() {
                *path = folder.join(&path);
            }
        }
    }

    fn portal_tls_mut(&mut self) -> impl Iterator<Item = (KeyPath, &mut PortalTls)> {
        let at = |index| KeyPath::default().key("portal").index(index).key("tls");
        let portals = self.portal.iter_mut().enumerate();
        portals.filter_map(move |(index, portal)| Some((at(index), portal.tls.as_mut()?)))
    }

    fn remote_tls_mut(&mut self) -> Vec<(KeyPath, &mut RemoteTls)> {
        let mut found = Vec::new();
        for (index, target) in self.target.iter_mut().enumerate() {
            let at = KeyPath::default().key("target").index(index);
            for (index, unit) in target.unit.iter_mut().enumerate() {
                let at = at.key("unit").index(index).key("stack");
                for (index, layer) in unit.stack.iter_mut().enumerate() {
                    let Some((keys, remote)) = layer.remote_mut() else { continue };
                    let at = keys.iter().fold(at.index(index), |at, key| at.key(key)).key("tls");
                    found.extend(remote.tls.as_deref_mut().map(|tls| (at, tls)));
                }
            }
        }
        found
    }
}

fn at_its_key(at: &KeyPath, wrong: TlsInputError, authorities: &str) -> UnusableCredential {
    let key = match wrong.part {
        TlsMaterial::Certificate => "certificate",
        TlsMaterial::Key => "key",
        TlsMaterial::Authorities => authorities,
        TlsMaterial::Name => "server_name",
    };
    UnusableCredential { key: at.key(key), message: wrong.message, remedy: wrong.remedy }
}
