//! Logs in to an iSCSI unit, with this process as the initiator.

use initiator::{RemoteVolume, Settings, Url};
use tokio::runtime::{Builder, Runtime};

use crate::Error;

/// The iSCSI initiator name of all workloads.
const NAME: &str = "iqn.2026-11.io.forebay:workload";

/// Returns a runtime that drives a session on the calling thread, so that a command does not wait
/// for another thread to wake up.
pub(crate) fn runtime() -> Result<Runtime, Error> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(Error::system("start a runtime"))
}

/// Returns the settings with which a workload logs in to the unit of a URL with one connection.
///
/// # Errors
/// [`Error::Settings`] if the URL names no unit.
pub(crate) fn settings(url: &str) -> Result<Settings, Error> {
    let read = url.parse::<Url>().map_err(|error| Error::Settings(error.to_string()))?;
    let settings = Settings::from_url(&read).ok_or_else(|| {
        Error::Settings(format!("{url} names no target: iscsi://HOST/TARGET/LUN"))
    })?;
    Ok(Settings { initiator_name: NAME.to_owned(), ..settings })
}

/// Logs in to the unit that `settings` name.
///
/// # Errors
/// [`Error::Session`].
pub(crate) async fn log_in(settings: Settings) -> Result<RemoteVolume, Error> {
    let act = format!("use {} at {}", settings.target, settings.portal);
    let connected = RemoteVolume::connect(settings).await;
    connected.map_err(|error| Error::Session { act, reason: error.to_string() })
}

/// Returns a function that makes an [`Error::Session`] of a failed request to a unit. `act`
/// completes the sentence "cannot ...".
pub(crate) fn failed(act: &str) -> impl Fn(volume::Error) -> Error {
    move |error| Error::Session { act: act.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_unit_is_refused_before_a_connection_is_made() {
        for wrong in ["iscsi://", "iscsi://host", "http://host/iqn.2026-11.test:a/0"] {
            let error = settings(wrong).unwrap_err();
            assert!(matches!(error, Error::Settings(_)), "{error}");
            assert!(error.to_string().contains(wrong), "{error}");
        }
        let settings = settings("iscsi://host:3261/iqn.2026-11.test:a/5").unwrap();
        assert_eq!((&*settings.portal, settings.lun), ("host:3261", 5));
        assert_eq!((&*settings.initiator_name, settings.connections), (NAME, 1));
    }
}
