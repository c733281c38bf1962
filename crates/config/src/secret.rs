//! Reads secrets from a file or an environment variable. A settings file never contains one.

use std::{os::unix::ffi::OsStringExt, path::Path};

use zeroize::Zeroizing;

use crate::private_file::{self, PrivateFileError, PrivateFileRule};

/// Maximum size of a secret file in bytes. A longer file is something else than a secret.
const FILE_BYTES: u64 = 4096;

/// A secret, and the file or environment variable that it comes from.
pub struct SecretWithSource {
    pub secret: Zeroizing<Vec<u8>>,
    /// File or environment variable that the secret was read from, for messages.
    pub place: String,
}

/// Returns the secret in the given file or variable; `None` if neither is given. An error holds the message and the
/// remedy.
pub fn read(
    file: Option<&Path>,
    env: Option<&str>,
) -> Result<Option<SecretWithSource>, (String, String)> {
    let found = match (file, env) {
        (Some(file), _) => {
            SecretWithSource { secret: from_file(file)?, place: file.display().to_string() }
        }
        (None, Some(name)) => SecretWithSource {
            secret: from_environment(name)?,
            place: format!("the variable {name}"),
        },
        (None, None) => return Ok(None),
    };
    Ok(Some(found))
}

/// Returns the content of a file that other users cannot read, without a line end.
fn from_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, (String, String)> {
    let read = private_file::read(path, "the secret", PrivateFileRule::Secret, FILE_BYTES);
    let mut bytes = read.map_err(|refusal| match refusal {
        PrivateFileError::Unreadable(error) => {
            let shown = path.display();
            let remedy = format!("make it with `forebay secret {shown}`, or correct `secret_file`");
            (format!("cannot read the secret {shown}: {error}"), remedy)
        }
        PrivateFileError::Unfit(message, remedy) => (message, remedy),
    })?;
    for end in [b'\n', b'\r'] {
        if bytes.last() == Some(&end) {
            bytes.pop();
        }
    }
    Ok(bytes)
}

fn from_environment(name: &str) -> Result<Zeroizing<Vec<u8>>, (String, String)> {
    match std::env::var_os(name) {
        Some(value) => Ok(Zeroizing::new(value.into_vec())),
        None => Err((
            format!("there is no variable {name} with a secret"),
            format!("set {name} where the process is started, or correct `secret_env`"),
        )),
    }
}
