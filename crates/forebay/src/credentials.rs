//! Credentials from the command line, for commands without a settings file.

use config::{
    ChapCredentialSettings, RemoteLayerSettings, RemoteTls,
    certificates::{self, FarSettingsOrigin},
    login_rules,
};
use control::Failure;
use initiator::chap::InitiatorChap;
use transport::TlsClient;

use crate::cli::Credentials;

pub fn chap(args: &Credentials) -> Result<Option<InitiatorChap>, Failure> {
    let Some(user) = user(args)? else { return Ok(None) };
    Ok(Some(login_rules::prove(&user, mutual(args)?.as_ref(), &config::ChapHashSetting::ALL)))
}

pub fn tls(args: &Credentials) -> Result<Option<TlsClient>, Failure> {
    let Some(ca) = &args.ca else { return Ok(None) };
    let own = args.certificate.as_deref().zip(args.key.as_deref());
    Ok(Some(certificates::client(own, ca, args.server_name.as_deref())?))
}

/// Returns the settings of a remote layer for `url`, with the CHAP and TLS credentials of the command line.
pub fn remote(url: &str, args: &Credentials) -> Result<RemoteLayerSettings, Failure> {
    let tls = args.ca.clone().map(|ca| {
        RemoteTls::of(ca, args.server_name.clone(), args.certificate.clone(), args.key.clone())
    });
    Ok(RemoteLayerSettings {
        url: url.to_owned(),
        user: user(args)?,
        mutual: mutual(args)?,
        tls: tls.transpose()?.map(Box::new),
        named: FarSettingsOrigin::Options,
        ..RemoteLayerSettings::default()
    })
}

fn user(args: &Credentials) -> Result<Option<ChapCredentialSettings>, Failure> {
    let proof = |name| {
        ChapCredentialSettings::at(name, args.secret_file.as_deref(), args.secret_env.as_deref())
    };
    args.user.as_deref().map(proof).transpose()
}

fn mutual(args: &Credentials) -> Result<Option<ChapCredentialSettings>, Failure> {
    let proof = |name| ChapCredentialSettings::at(name, args.mutual_secret_file.as_deref(), None);
    args.mutual.as_deref().map(proof).transpose()
}
