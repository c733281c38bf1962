//! Output: results on stdout, and progress for people on stderr.

use std::io::{ErrorKind, Write};

use control::Failure;

/// Prints to stdout. A reader that has closed the pipe is not an error.
pub fn print(bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes.as_ref()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot print: {error}")).remedy(
                "free space where the output goes, and repeat the command; `forebay \
                 status` shows whether a change was made",
            ))
        }
        _ => Ok(()),
    }
}

pub fn print_line(text: impl std::fmt::Display) -> Result<(), Failure> {
    print(format!("{text}\n"))
}

/// Prints a line to stderr. Errors are ignored: the terminal or the reader may have ended, but the work must be
/// completed.
pub fn tell(text: impl std::fmt::Display) {
    let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}
