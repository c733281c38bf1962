//! Rules between the keys of remote units and of credentials.

use std::path::Path;

use super::{
    FarVolumeAddress, RemoteLayerSettings,
    access::{ChapCredentialSettings, ChapHashSetting},
    problem::KeyPath,
    rule::{SettingsRuleResult, range, required, wrong},
    tls::RemoteTls,
};
use crate::quantity::{Size, TimeSpan};

/// Checks the keys of a remote unit.
pub(super) fn remote_unit(remote: &RemoteLayerSettings, at: &KeyPath) -> SettingsRuleResult {
    required(
        at,
        "url",
        remote.url.is_empty(),
        "\"iscsi://10.0.0.2/iqn.2026-11.com.example:disk1/0\"",
    )?;
    match remote.url.parse::<FarVolumeAddress>() {
        Ok(FarVolumeAddress::Named(_)) => {}
        Ok(FarVolumeAddress::At(url)) if url.target.is_some() => {}
        Ok(FarVolumeAddress::At(_)) => {
            return wrong(
                at.key("url"),
                format!("{} names no target", remote.url),
                format!("add one; `forebay ls {}` shows which there are", remote.url),
            );
        }
        Err(error) => {
            let remedy = "write iscsi://HOST[:PORT]/TARGET-NAME/LUN, or gln:VOLUME";
            return wrong(at.key("url"), error, remedy);
        }
    }
    remote.user.iter().try_for_each(|user| proof(user, &at.key("user")))?;
    remote.mutual.iter().try_for_each(|mutual| proof(mutual, &at.key("mutual")))?;
    if remote.mutual.is_some() && remote.user.is_none() {
        let message = "the target authenticates itself only to authenticated initiators";
        return wrong(at.key("mutual"), message, "add `user`, or remove `mutual`");
    }
    remote.tls.iter().try_for_each(|tls| remote_tls(tls, &at.key("tls")))?;
    chap(&remote.chap, at)?;
    range(at, "queue_depth", remote.queue_depth, 1, 1024)?;
    socket_buffer(at, remote.socket_buffer)?;
    range(at, "connections", remote.connections, 1, 8)?;
    range(at, "error_recovery_level", remote.error_recovery_level, 0, 2)?;
    let (least, most) = (TimeSpan::millis(100), TimeSpan::seconds(3600));
    range(at, "connect_timeout", remote.connect_timeout, least, most)?;
    range(at, "login_timeout", remote.login_timeout, least, most)?;
    range(at, "command_timeout", remote.command_timeout, least, most)?;
    range(at, "give_up_after", remote.give_up_after, least, most)?;
    range(at, "ping_interval", remote.ping_interval, TimeSpan::seconds(1), most)
}

/// From the size that holds a PDU of 8 KiB to the bytes that 100 Gbit/s carry in 20 ms.
pub const SOCKET_BUFFER: (Size, Size) = (Size::kib(16), Size::mib(256));

pub(super) fn socket_buffer(at: &KeyPath, size: Option<Size>) -> SettingsRuleResult {
    let (least, most) = SOCKET_BUFFER;
    size.map_or(Ok(()), |size| range(at, "socket_buffer", size, least, most))
}

pub(super) fn remote_tls(tls: &RemoteTls, at: &KeyPath) -> SettingsRuleResult {
    required(at, "ca", tls.ca.as_os_str().is_empty(), "\"ca.pem\"")?;
    required(at, "key", tls.certificate.is_some() && tls.key.is_none(), "\"host.key\"")?;
    required(at, "certificate", tls.key.is_some() && tls.certificate.is_none(), "\"host.pem\"")
}

pub(super) fn proof(proof: &ChapCredentialSettings, at: &KeyPath) -> SettingsRuleResult {
    required(at, "name", proof.name.is_empty(), "\"alice\"")?;
    // The limits of common targets and initiators.
    if proof.name.len() > 255 || proof.name.chars().any(char::is_control) {
        let message = "longer than 255 bytes, or with control characters";
        return wrong(at.key("name"), message, "write another name");
    }
    one_secret(proof.secret_file.as_deref(), proof.secret_env.as_deref(), at)
}

pub(super) fn one_secret(
    file: Option<&Path>,
    env: Option<&str>,
    at: &KeyPath,
) -> SettingsRuleResult {
    match (file, env) {
        (Some(_), None) | (None, Some(_)) => Ok(()),
        (None, None) => wrong(
            at.clone(),
            "there is no secret",
            "add secret_file = \"FILE\", made with `forebay secret FILE`",
        ),
        (Some(_), Some(_)) => {
            wrong(at.key("secret_env"), "there are two secrets", "keep one of the two")
        }
    }
}

pub(super) fn chap(chap: &[ChapHashSetting], at: &KeyPath) -> SettingsRuleResult {
    let is_twice = |(index, one): (usize, &ChapHashSetting)| chap[..index].contains(one);
    if chap.is_empty() || chap.iter().enumerate().any(is_twice) {
        let message = "no hash, or one of them twice";
        return wrong(at.key("chap"), message, "write some of sha3-256, sha-256, sha-1, md5");
    }
    Ok(())
}
