//! `forebay ls`: lists the targets of a portal or the units of a target.

use ::names::VolumeName;
use config::{
    FarVolumeAddress, Settings,
    certificates::{self, FarSettingsOrigin},
    quantity::about,
};
use control::{ControlRequest, ControlResponse, Failure};
use iscsi::{login::LoginFailure, pdu::LoginStatus};
use node::naming::{self, Naming};
use serde_json::json;

use crate::{
    cli::{Credentials, Ls},
    control_socket, credentials,
    output::{print, tell},
    table::table,
};

/// A target with its list of units, or with the reason why the units cannot be listed.
struct ListedTarget {
    target: String,
    portals: Vec<String>,
    units: Result<Vec<initiator::ListedUnit>, initiator::Error>,
}

pub async fn run(args: &Ls) -> Result<(), Failure> {
    let far: FarVolumeAddress = args.url.parse().map_err(|error: String| {
        Failure::settings(error)
            .remedy("write iscsi://HOST[:PORT], iscsi://HOST[:PORT]/TARGET-NAME, or gln:VOLUME")
    })?;
    let url = match far {
        FarVolumeAddress::At(url) => url,
        FarVolumeAddress::Named(volume) => place(args, volume).await?,
    };
    let mut settings = initiator::Settings::new("", "", 0);
    settings.initiator_name.clone_from(&args.initiator_name);
    settings.chap = credentials::chap(&args.credentials)?;
    settings.tls = credentials::tls(&args.credentials)?;
    let mut found = Err(initiator::Error::Closed);
    for portal in &url.portals {
        settings.portal.clone_from(portal);
        found = list(&settings, &url).await;
        let answers = |listed: &Vec<ListedTarget>| listed.iter().all(|listed| listed.units.is_ok());
        if found.as_ref().is_ok_and(answers) {
            break;
        }
    }
    let listed = found.map_err(|error| refused(args, &error))?;
    print(if args.json { as_json(&listed) } else { for_people(&settings.portal, &listed) })?;
    if listed.is_empty() && args.credentials.user.is_none() {
        let Ls { url, initiator_name, .. } = args;
        tell(format!(
            "{url} shows no target to {initiator_name} without a user; targets that want CHAP are hidden from it\n  \
             to see them: forebay ls {url} --user NAME --secret-file FILE"
        ));
    }
    match listed.into_iter().find_map(|listed| listed.units.err()) {
        Some(error) => Err(refused(args, &error)),
        None => Ok(()),
    }
}

async fn list(
    settings: &initiator::Settings,
    url: &initiator::Url,
) -> Result<Vec<ListedTarget>, initiator::Error> {
    let targets = match &url.target {
        Some(name) => vec![(name.clone(), vec![settings.portal.clone()])],
        None => {
            let found = initiator::discover(settings).await?;
            found.into_iter().map(|target| (target.name, target.portals)).collect()
        }
    };
    let mut listed = Vec::new();
    for (target, portals) in targets {
        let session = initiator::Settings { target: target.clone(), ..settings.clone() };
        let mut units = initiator::list_units(&session).await;
        if let (Ok(units), Some(lun)) = (&mut units, url.lun) {
            units.retain(|unit| unit.lun == lun);
        }
        listed.push(ListedTarget { target, portals, units });
    }
    Ok(listed)
}

/// Returns the location of a volume: from the process that serves on this host, or else from the seeds of its settings.
async fn place(args: &Ls, volume: VolumeName) -> Result<initiator::Url, Failure> {
    let served = args.whom.path().and_then(|path| {
        control_socket::ask(&path, ControlRequest::Locate { volume: volume.clone() })
    });
    let place = match (served, &args.whom.config) {
        (Ok(ControlResponse::Located(place)), _) => place,
        (Ok(other), _) => return Err(other.unexpected()),
        (Err(failure), None) => return Err(failure),
        (Err(_), Some(config)) => {
            let naming = Naming::guest(&Settings::load_without_secrets(config)?)?;
            let naming = naming.ok_or_else(|| {
                Failure::settings("the settings have no [names]").remedy(
                    "add a [names] table to the settings, or list by address: `forebay ls \
                     iscsi://HOST`",
                )
            })?;
            naming.locate(&volume).await.map_err(Failure::new)?
        }
    };
    let place = naming::usable(place, args.credentials.ca.is_some()).map_err(|error| {
        Failure::new(error).remedy("--ca FILE is for portals with TLS, and for those alone")
    })?;
    Ok(initiator::Url { portals: place.portals, target: Some(place.target), lun: Some(place.lun) })
}

fn refused(args: &Ls, error: &initiator::Error) -> Failure {
    let remedy = match error {
        initiator::Error::Login(LoginFailure::Refused(LoginStatus::AuthenticationFailure)) => {
            authentication_remedy(&args.credentials)
        }
        initiator::Error::Tls(distrust) => {
            certificates::remedy(distrust.cause, FarSettingsOrigin::Options)
        }
        initiator::Error::Closed if args.credentials.ca.is_some() => {
            "see the target's events about this connection".to_owned()
        }
        initiator::Error::Closed => "check whether the portal requires TLS: --ca FILE".to_owned(),
        initiator::Error::Login(LoginFailure::Proof(_)) => {
            "correct the name in --mutual or the secret in --mutual-secret-file".to_owned()
        }
        initiator::Error::Login(LoginFailure::Refused(status)) => login_remedy(args, *status),
        initiator::Error::Login(_) => "see the target's events about this login".to_owned(),
        _ => "check that an iSCSI target listens there".to_owned(),
    };
    Failure::new(format!("cannot list {}: {error}", args.url)).remedy(remedy)
}

/// Returns the remedy for a login that the target has refused for a reason other than authentication.
fn login_remedy(args: &Ls, status: LoginStatus) -> String {
    let us = &args.initiator_name;
    let is_discovery = args.url.parse().is_ok_and(|far: FarVolumeAddress| {
        matches!(far, FarVolumeAddress::At(initiator::Url { target: None, .. }))
    });
    match status {
        LoginStatus::ServiceUnavailable | LoginStatus::OutOfResources => {
            "try again later: the target is not served there now, or accepts no more connections"
                .to_owned()
        }
        LoginStatus::NotFound if !is_discovery => format!(
            "correct the target's name, or have its `allow` admit {us}; without a name, all are listed \
             that this initiator may see"
        ),
        LoginStatus::AuthorizationFailure if is_discovery => {
            format!("have `allow` in [discovery] of the target's settings admit {us}")
        }
        _ => format!("see the target's events about the login of {us}"),
    }
}

fn authentication_remedy(credentials: &Credentials) -> String {
    let Some(user) = &credentials.user else {
        return "authenticate: --user NAME --secret-file FILE".to_owned();
    };
    let secret = match (&credentials.secret_file, &credentials.secret_env) {
        (Some(file), _) => format!("the file {}", file.display()),
        (None, Some(variable)) => format!("the environment variable {variable}"),
        (None, None) => "the secret".to_owned(),
    };
    format!(
        "the target does not know the user {user}, or its secret is not the one in {secret}: correct --user or the secret"
    )
}

fn as_json(listed: &[ListedTarget]) -> String {
    let units = |listed: &ListedTarget| match &listed.units {
        Ok(units) => units.iter().map(unit_as_json).collect(),
        Err(_) => Vec::new(),
    };
    let targets: Vec<_> = listed
        .iter()
        .map(|listed| {
            json!({
                "name": listed.target,
                "portals": listed.portals,
                "units": units(listed),
                "error": listed.units.as_ref().err().map(ToString::to_string),
            })
        })
        .collect();
    format!("{}\n", json!({ "targets": targets }))
}

fn unit_as_json(unit: &initiator::ListedUnit) -> serde_json::Value {
    match &unit.facts {
        Ok(facts) => json!({
            "lun": unit.lun,
            "bytes": facts.geometry.bytes(),
            "block_size": facts.geometry.block_size,
            "read_only": facts.geometry.read_only,
            "thin": facts.geometry.thin,
            "vendor": facts.vendor,
            "product": facts.product,
            "identity": facts.identity,
        }),
        Err(error) => json!({ "lun": unit.lun, "error": error.to_string() }),
    }
}

fn for_people(portal: &str, listed: &[ListedTarget]) -> String {
    let mut table = table(&["unit", "size", "blocks of", "what", "identity"]);
    for listed in listed {
        match &listed.units {
            Err(error) => {
                table.add_row([
                    listed.target.clone(),
                    String::new(),
                    String::new(),
                    error.to_string(),
                    String::new(),
                ]);
            }
            Ok(units) => {
                for unit in units {
                    let name = format!("iscsi://{portal}/{}/{}", listed.target, unit.lun);
                    match &unit.facts {
                        Ok(facts) => table.add_row([
                            name,
                            about(facts.geometry.bytes()),
                            facts.geometry.block_size.to_string(),
                            format!("{} {}", facts.vendor, facts.product),
                            facts.identity.clone(),
                        ]),
                        Err(error) => table.add_row([
                            name,
                            String::new(),
                            String::new(),
                            error.to_string(),
                            String::new(),
                        ]),
                    };
                }
            }
        }
    }
    if table.is_empty() { "no targets\n".into() } else { format!("{table}\n") }
}
