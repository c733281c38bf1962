//! Converts settings about logins (CHAP users, access rules, credentials) to the types of target and initiator.

use iscsi::login::chap::{Credential, InitiatorChap};
use target::{LoginAccess, LoginAccessRule, Security};

use crate::{Allow, ChapCredentialSettings, Discovery, RemoteLayerSettings, Settings};

/// Returns the CHAP users and the discovery rules that these settings define.
pub fn security(settings: &Settings) -> Security {
    let users: Vec<Credential> =
        settings.user.iter().map(ChapCredentialSettings::credential).collect();
    let algorithms: Vec<_> = settings.iscsi.chap.iter().map(|chap| chap.algorithm()).collect();
    let Discovery { allow, mutual } = &settings.discovery;
    let discovery = rules(allow.as_deref(), mutual.as_ref());
    Security { users: users.into(), algorithms: algorithms.into(), discovery }
}

pub fn access(target: &crate::IscsiTargetSettings) -> LoginAccess {
    rules(target.allow.as_deref(), target.mutual.as_ref())
}

/// Returns the CHAP credentials for a remote target in both directions; `None` if the layer has no `user`.
pub fn chap(remote: &RemoteLayerSettings) -> Option<InitiatorChap> {
    Some(prove(remote.user.as_ref()?, remote.mutual.as_ref(), &remote.chap))
}

/// Combines our credential, the one that the target has to prove, and the accepted hashes.
pub fn prove(
    user: &ChapCredentialSettings,
    mutual: Option<&ChapCredentialSettings>,
    hashes: &[crate::ChapHashSetting],
) -> InitiatorChap {
    let algorithms = hashes.iter().map(|chap| chap.algorithm()).collect();
    InitiatorChap {
        user: user.credential(),
        target: mutual.map(ChapCredentialSettings::credential),
        algorithms,
    }
}

fn rules(allow: Option<&[Allow]>, mutual: Option<&ChapCredentialSettings>) -> LoginAccess {
    let rule = |allow: &Allow| LoginAccessRule {
        initiator: allow.initiator.as_ref().map(|pattern| pattern.0.clone()),
        network: allow.network.map(|network| network.0),
        user: allow.user.clone(),
    };
    let rules = allow.map(|allow| allow.iter().map(rule).collect());
    LoginAccess { rules, mutual: mutual.map(ChapCredentialSettings::credential) }
}
