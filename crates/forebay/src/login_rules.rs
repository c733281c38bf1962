//! Settings to who may log in where: users, rules and proofs as the target and the initiator take
//! them.

use iscsi::login::chap::{Credential, InitiatorChap};
use target::{LoginAccess, LoginAccessRule, Security};

use crate::settings::{
    self, Allow, ChapCredentialSettings, Discovery, RemoteLayerSettings, Settings,
};

/// Who can prove what to this process.
pub fn security(settings: &Settings) -> Security {
    let users: Vec<Credential> =
        settings.user.iter().map(ChapCredentialSettings::credential).collect();
    let algorithms: Vec<_> = settings.iscsi.chap.iter().map(|chap| chap.algorithm()).collect();
    let Discovery { allow, mutual } = &settings.discovery;
    let discovery = rules(allow.as_deref(), mutual.as_ref());
    Security { users: users.into(), algorithms: algorithms.into(), discovery }
}

/// Who may log in to a target.
pub fn access(target: &settings::IscsiTargetSettings) -> LoginAccess {
    rules(target.allow.as_deref(), target.mutual.as_ref())
}

/// What we prove to a remote target, and it to us.
pub fn chap(remote: &RemoteLayerSettings) -> Option<InitiatorChap> {
    Some(prove(remote.user.as_ref()?, remote.mutual.as_ref(), &remote.chap))
}

/// Who we are, who the target has to be, and by which hashes.
pub fn prove(
    user: &ChapCredentialSettings,
    mutual: Option<&ChapCredentialSettings>,
    hashes: &[settings::ChapHashSetting],
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
