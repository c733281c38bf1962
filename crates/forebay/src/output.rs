//! What the program prints for its caller: stdout; and what it tells who looks on meanwhile: stderr.

use std::io::{ErrorKind, Write};

use crate::failure::Failure;

/// Prints. A reader that has gone away has seen enough: that is no failure.
pub fn print(bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes.as_ref()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot print: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a line.
pub fn print_line(text: impl std::fmt::Display) -> Result<(), Failure> {
    print(format!("{text}\n"))
}

/// Tells a line to who looks on. Whether anybody does is no matter: a terminal may be gone, or the reader of a pipe, and what
/// is under way has to end in order all the same.
pub fn tell(text: impl std::fmt::Display) {
    let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}
