//! Checks of keys that targets and remote layers have in common: credentials, CHAP hashes and socket buffers.

use std::path::Path;

use super::{
    access::{ChapCredentialSettings, ChapHashSetting},
    problem::KeyPath,
    rule::{SettingsRuleResult, range, required, wrong},
};
use crate::quantity::Size;

/// Range of `socket_buffer`: from the size that holds a PDU of 8 KiB to the bytes that 100 Gbit/s carry in 20 ms.
pub const SOCKET_BUFFER: (Size, Size) = (Size::kib(16), Size::mib(256));

pub(super) fn socket_buffer(at: &KeyPath, size: Option<Size>) -> SettingsRuleResult {
    let (least, most) = SOCKET_BUFFER;
    size.map_or(Ok(()), |size| range(at, "socket_buffer", size, least, most))
}

pub(super) fn proof(proof: &ChapCredentialSettings, at: &KeyPath) -> SettingsRuleResult {
    required(at, "name", proof.name.is_empty(), "\"alice\"")?;
    // Most targets and initiators accept CHAP names of at most 255 bytes.
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
