//! Reads the certificates and keys that the settings name. A reload passes renewed ones to running sessions.

use std::path::Path;

use transport::TlsMaterial;

use super::{
    Layer, Settings,
    access::UnusableCredential,
    problem::KeyPath,
    tls::{PortalTls, RemoteTls},
};
use crate::certificates::TlsInputError;

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

    /// Keeps the TLS configuration of running sessions in remote layers whose settings equal those of `old`. The new
    /// certificates are held back until [`Settings::renew_certificates`], so that a reload that fails changes nothing.
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

    /// Passes the certificates that were read with these settings to the sessions of remote layers. A session uses them
    /// from its next connection on.
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

    /// Makes relative paths of certificates relative to `folder`.
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
