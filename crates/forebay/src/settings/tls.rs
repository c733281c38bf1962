//! TLS as data: which certificates an end shows, and whose it takes. The files are read with the
//! settings.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use transport::{TlsClient, TlsMaterial, TlsServer};

use super::{Layer, Settings, access::UnusableCredential, problem::KeyPath};
use crate::{
    failure::Failure,
    tls::{self, TlsInputError},
};

/// What a portal proves itself with, and who may connect to it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct PortalTls {
    /// Its certificate, with those between it and its authority; required.
    pub certificate: PathBuf,
    /// Its key, readable by its owner only; required.
    pub key: PathBuf,
    /// The authorities that initiators' certificates come from; required.
    pub client_ca: PathBuf,
    #[serde(skip)]
    loaded: Option<TlsServer>,
}

/// What we prove to a remote target, and it to us.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteTls {
    /// The authorities that its certificate comes from; required.
    pub ca: PathBuf,
    /// The name that its certificate has; if left out, the host that is connected to.
    pub server_name: Option<String>,
    /// Our certificate.
    pub certificate: Option<PathBuf>,
    /// Its key, readable by its owner only.
    pub key: Option<PathBuf>,
    /// What sessions have.
    #[serde(skip)]
    loaded: Option<TlsClient>,
    /// What a reload has read, where the session is older.
    #[serde(skip)]
    fresh: Option<TlsClient>,
}

impl PartialEq for RemoteTls {
    /// Whether they name the same: for what is in the files see [`Settings::keep_certificates`].
    fn eq(&self, other: &Self) -> bool {
        let named = |tls: &Self| {
            (tls.ca.clone(), tls.server_name.clone(), tls.certificate.clone(), tls.key.clone())
        };
        named(self) == named(other)
    }
}

impl PortalTls {
    /// For the portal.
    ///
    /// # Panics
    /// If the files of the settings were not read.
    pub fn server(&self) -> TlsServer {
        self.loaded.clone().expect("settings are used after their files were read")
    }

    /// A number for the authorities in `client_ca`, the same wherever the same are.
    pub fn authorities(&self) -> Result<String, Failure> {
        Ok(tls::fingerprint(&self.client_ca)?)
    }

    fn read(&mut self) -> Result<(), TlsInputError> {
        self.loaded = Some(tls::server(&self.certificate, &self.key, &self.client_ca)?);
        Ok(())
    }
}

impl RemoteTls {
    /// Reads what the command line names.
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

    /// For the session.
    ///
    /// # Panics
    /// If the files of the settings were not read.
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

    /// Remote layers that are the same as in `old` keep what their sessions have, until
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

    /// From their next connections on sessions of remote layers have the certificates that were
    /// read with these settings.
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

    /// Relative paths of certificates are relative to this folder.
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
