//! Converts errors of an object drive to failures with remedies.

use control::Failure;
use object::ObjectError;

use crate::cli::DriveArgs;

/// The remedy for an answer of the drive that does not fit its command.
pub const OTHER_VERSION_REMEDY: &str =
    "use the same version of Forebay at both ends (forebay --version)";

/// Returns the failure of an action that the user wanted, such as "read 10000h/10001h".
pub fn failed(drive: &DriveArgs, action: &str, error: ObjectError) -> Failure {
    let failure = Failure::new(format!("cannot {action}: {error}"));
    let url = &drive.url;
    match error {
        ObjectError::NoSuchObject { .. } => {
            failure.remedy(format!("see what exists: `forebay object list {url}`"))
        }
        ObjectError::Exists { .. } => {
            failure.remedy("name another identifier, or none, so that the drive chooses one")
        }
        ObjectError::NotEmpty { .. } => {
            failure.remedy("remove what it contains first, or use --with-contents")
        }
        ObjectError::Quota { .. } => failure
            .remedy(format!("remove objects, or enlarge the drive: `forebay object info {url}`")),
        ObjectError::Damaged { .. } => failure.remedy(format!(
            "see what is damaged: `forebay object verify {url}`; restore it from a copy"
        )),
        ObjectError::FormatInProgress => failure.remedy("try again when it has ended"),
        ObjectError::Unreachable(_) => {
            failure.remedy(format!("check that the drive is served: `forebay ls {url}`"))
        }
        ObjectError::NotGenuine(_) => failure.remedy(
            "do not trust the result: check that --key-file or --credential belongs to this drive, \
             and who can alter the connection",
        ),
        ObjectError::OutcomeUnknown => failure.remedy(format!(
            "see whether it was done before you repeat it: `forebay object list {url}`"
        )),
        ObjectError::ChangesMayBeLost => failure
            .remedy("repeat what you wrote since the last flush; a put continues with --resume"),
        ObjectError::Capability(_) => failure.remedy(capability_remedy(drive)),
        ObjectError::InvalidField { .. }
        | ObjectError::InvalidAttribute { .. }
        | ObjectError::Storage(_)
        | ObjectError::Unsupported => failure,
    }
}

/// Returns the remedy for a command whose capability the drive refused.
fn capability_remedy(drive: &DriveArgs) -> String {
    let url = &drive.url;
    match (&drive.key_file, &drive.credential) {
        (Some(file), _) => format!(
            "check that {} is the key file of this drive; if the drive or partition is new, set its keys: `forebay \
             object set-key {url} PID --key-file FILE`",
            file.display()
        ),
        (None, Some(_)) => {
            "ask the drive's owner for another credential: `forebay object grant`".to_owned()
        }
        (None, None) => "sign: --key-file FILE or --credential FILE".to_owned(),
    }
}
