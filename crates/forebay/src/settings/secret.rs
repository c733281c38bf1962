//! Secrets: read from where the settings say, which is never a settings file.

use std::{
    fs::File,
    io::Read,
    os::unix::{ffi::OsStringExt, fs::PermissionsExt},
    path::Path,
};

use zeroize::Zeroizing;

/// Longer files hold something else.
const FILE_BYTES: u64 = 4096;

/// A secret, and what to call the place where it was.
pub struct Found {
    pub secret: Zeroizing<Vec<u8>>,
    pub place: String,
}

/// The secret in the file or variable, whichever is named; `None` if neither is. An error is what
/// is wrong, and what to do.
pub fn read(file: Option<&Path>, env: Option<&str>) -> Result<Option<Found>, (String, String)> {
    let found = match (file, env) {
        (Some(file), _) => Found { secret: from_file(file)?, place: file.display().to_string() },
        (None, Some(name)) => {
            Found { secret: from_environment(name)?, place: format!("the variable {name}") }
        }
        (None, None) => return Ok(None),
    };
    Ok(Some(found))
}

/// The content of a file that nobody else can read, without the end of its line.
fn from_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, (String, String)> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        let remedy = format!("make it with `forebay secret {shown}`, or correct `secret_file`");
        (format!("cannot read the secret {shown}: {error}"), remedy)
    };
    let mut file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.permissions().mode();
    if mode & 0o077 != 0 {
        let message = format!("the secret {shown} is open to others (mode {:03o})", mode & 0o777);
        return Err((message, format!("chmod 600 {shown}")));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES as usize));
    (&mut file).take(FILE_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
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
