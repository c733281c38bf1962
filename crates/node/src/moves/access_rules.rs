//! Compares the access rules of a moved target: the destination node must not admit more initiators than the source
//! node.

use std::collections::BTreeSet;

use config::{Allow, IscsiTargetSettings, Settings};
use control::Failure;
use serde::{Deserialize, Serialize};

/// The initiators that may log in to a target, and the portals that they may use.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct TargetAccessRules {
    /// Rules of which an initiator has to match one; `None` admits every initiator.
    allow: Option<Vec<Allow>>,
    /// The CHAP name with which the target authenticates itself; `None` if it does not.
    mutual: Option<String>,
    /// The certificate authorities of all portals, which certify the initiators that may connect; `None` if a portal
    /// does not use TLS.
    tls: Option<BTreeSet<String>>,
    /// True if all portals are loopback addresses.
    is_local: bool,
}

impl TargetAccessRules {
    pub fn of(settings: &Settings, target: &IscsiTargetSettings) -> Result<Self, Failure> {
        let groups = settings.groups();
        let reached = groups.iter().filter(|group| target.is_reached_through(group));
        let portals: Vec<_> = reached.flat_map(|group| &group.portals).collect();
        let mut tls = Some(BTreeSet::new());
        for (_, portal) in &portals {
            match (&portal.tls, &mut tls) {
                (Some(portal), Some(tls)) => _ = tls.insert(portal.authorities()?),
                _ => tls = None,
            }
        }
        Ok(Self {
            allow: target.allow.clone(),
            mutual: target.mutual.as_ref().map(|mutual| mutual.name.clone()),
            tls,
            is_local: portals.iter().all(|(address, _)| address.0.ip().is_loopback()),
        })
    }

    /// Fails if `other`, the access rules on the destination node, admit an initiator that this target refuses.
    pub fn check(&self, target: &str, other: &Self) -> Result<(), Failure> {
        let wrong = |what: &str, remedy: &str| {
            let named = "or name the target in the settings of the node, with `redirect` to its present portal";
            Err(Failure::new(format!("{target}: {what}")).remedy(format!("{remedy}, {named}")))
        };
        if self.is_local && !other.is_local {
            return wrong(
                "it can be reached only from its own machine now, and could be reached from others at the node",
                "make it reachable from others on its present node (`listen`)",
            );
        }
        let covered = |it: &Allow| self.allow.iter().flatten().any(|ours| ours.covers(it));
        match &other.allow {
            None if self.allow.is_some() => {
                return wrong(
                    "access to it is restricted now, and would not be restricted at the node",
                    "restrict it by `allow` in the [accept] table of the node",
                );
            }
            Some(allow) if self.allow.is_some() && !allow.iter().all(covered) => {
                return wrong(
                    "the node would admit more initiators than its present one",
                    "make `allow` in the [accept] table of the node no wider than that of the target",
                );
            }
            _ => {}
        }
        if self.mutual.is_some() && self.mutual != other.mutual {
            return Err(Failure::new(format!(
                "{target}: it authenticates itself to initiators now (mutual CHAP), and would not do so, or by \
                 another name, at the node"
            ))
            .remedy(
                "name the target in the settings of the node, with the same `mutual` and `allow`, and \
                 `redirect` to its present portal",
            ));
        }
        match (&self.tls, &other.tls) {
            (Some(_), None) => wrong(
                "it can be reached only with TLS now, and could be reached without TLS at the node",
                "set `tls` for all portals of the node that lead to it",
            ),
            (Some(ours), Some(its)) if !its.is_subset(ours) => wrong(
                "the node would accept other certificates than its present one",
                "give its portals the same `client_ca`",
            ),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn access(text: &str) -> TargetAccessRules {
        let common = "state = 's'\n[names]\nlisten = ['127.0.0.1:0']\nsecret_file = 's'\n[[user]]\nname = 'alice'\n\
                      secret_file = 'a'\n[[user]]\nname = 'bob'\nsecret_file = 'b'\n";
        let unit = "[[target.unit]]\nstack = [ { memory = { size = '1MiB' } } ]\n";
        let (top, target) = text.split_once('|').unwrap_or(("", text));
        let text = format!("{top}\n{common}[[target]]\nname = 'iqn.a:b'\n{target}\n{unit}");
        let settings = Settings::parse(Path::new("f.toml"), &text);
        let settings = settings.unwrap_or_else(|error| panic!("{error}\n{text}"));
        TargetAccessRules::of(&settings, &settings.target[0]).unwrap()
    }

    fn allow(rules: &[&str]) -> String {
        rules.iter().map(|rule| format!("[[target.allow]]\n{rule}\n")).collect()
    }

    #[test]
    fn a_move_to_rules_that_admit_more_initiators_is_refused() {
        let is_right = |from: &[&str], to: &[&str]| {
            access(&allow(from)).check("iqn.a:b", &access(&allow(to))).is_ok()
        };
        let (name, names) = ("initiator = 'iqn.x:db1'", "initiator = 'iqn.x:*'");
        let (small, large) = ("network = '10.1.0.0/16'", "network = '10.0.0.0/8'");
        let (alice, bob) = ("user = 'alice'", "user = 'bob'");
        let both = "initiator = 'iqn.x:db1'\nuser = 'alice'\nnetwork = '10.1.2.0/24'";
        for (from, to) in [
            (&[][..], &[][..]),
            (&[], &[alice]),
            (&[name], &[name]),
            (&[names], &[name]),
            (&[names], &["initiator = 'iqn.x:db*'"]),
            (&[large], &[small]),
            (&[large], &["network = '10.0.0.0/8'\nuser = 'bob'"]),
            (&[alice, small], &[both]),
            (&[alice, bob], &[bob]),
        ] {
            assert!(is_right(from, to), "{from:?} {to:?}");
        }
        for (from, to) in [
            (&[alice][..], &[][..]),
            (&[name], &[names]),
            (&[name], &["initiator = 'iqn.x:db2'"]),
            (&[names], &["initiator = 'iqn.*'"]),
            (&[small], &[large]),
            (&[small], &["network = '10.2.0.0/16'"]),
            (&[small], &["network = 'fd00::/8'"]),
            (&[alice], &[bob]),
            (&[alice], &[small]),
            (&[both], &[alice]),
            (&[both], &[small]),
            (&[alice], &[alice, bob]),
        ] {
            assert!(!is_right(from, to), "{from:?} {to:?}");
        }
    }

    #[test]
    fn a_target_on_loopback_only_does_not_move_to_a_public_portal() {
        let (local, wide) =
            (access("listen = ['127.0.0.1:0']|"), access("listen = ['0.0.0.0:0']|"));
        local.check("a", &local).unwrap();
        wide.check("a", &local).unwrap();
        assert!(local.check("a", &wide).is_err());
        // The check compares only the portals through which the target is reached.
        let own = access("listen = ['0.0.0.0:0']|listen = ['127.0.0.1:1']");
        own.check("a", &local).unwrap();
        assert!(own.check("a", &wide).is_err());
    }
}
