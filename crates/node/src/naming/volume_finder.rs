//! Finds a volume by its name for the initiator, which asks before each connect.

use std::{fmt, sync::Arc};

use ::names::{VolumeLocation, VolumeName};
use initiator::{Locate, Locating};
use stack::FindFarVolume;

use super::Naming;

/// Finds the portals of one volume by the volume's name.
struct Finder {
    naming: Arc<Naming>,
    volume: VolumeName,
    /// True if connections use TLS: then only portals with TLS are usable, otherwise only those without.
    tls: bool,
}

impl FindFarVolume for Naming {
    fn finder(self: Arc<Self>, volume: VolumeName, tls: bool) -> Arc<dyn Locate> {
        Arc::new(Finder { naming: self, volume, tls })
    }
}

impl fmt::Debug for Finder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Finder({})", self.volume)
    }
}

impl Locate for Finder {
    fn locate(&self) -> Locating<'_> {
        Box::pin(async {
            let place =
                self.naming.locate(&self.volume).await.map_err(|error| error.to_string())?;
            tracing::debug!(volume = %self.volume, node = %place.node, "found");
            Ok(usable(place, self.tls)?)
        })
    }
}

/// Returns the usable portals. A portal without TLS is never used if TLS is wanted.
pub fn usable(place: VolumeLocation, tls: bool) -> Result<initiator::IscsiLocation, String> {
    let VolumeLocation { node, portals, target, lun, .. } = place;
    let fits = portals.iter().filter(|portal| portal.tls == tls);
    let fits: Vec<String> = fits.map(|portal| portal.address.clone()).collect();
    match (fits.is_empty(), portals.is_empty()) {
        (false, _) => Ok(initiator::IscsiLocation { portals: fits, target, lun }),
        (true, true) => Err(format!("the node {node} announces no portal for it")),
        (true, false) if tls => Err(format!("the node {node} has no portal with TLS for it")),
        (true, false) => Err(format!("the node {node} serves it through TLS only")),
    }
}

#[cfg(test)]
mod tests {
    use ::names::{Gln, PortalAddress};

    use super::*;

    #[test]
    fn tls_is_never_left_out_on_the_way() {
        let portal = |address: &str, tls| PortalAddress { address: address.into(), tls };
        let place = |portals| VolumeLocation {
            node: "n".parse().unwrap(),
            gln: Gln::new([1; 16]),
            target: "iqn.a:b".into(),
            lun: 3,
            portals,
        };
        let both = vec![portal("a:1", false), portal("b:1", true)];
        assert_eq!(usable(place(both.clone()), true).unwrap().portals, ["b:1"]);
        assert_eq!(usable(place(both), false).unwrap().portals, ["a:1"]);
        assert!(usable(place(vec![portal("a:1", false)]), true).is_err());
        assert!(usable(place(vec![portal("b:1", true)]), false).is_err());
        assert!(usable(place(Vec::new()), false).is_err());
    }
}
