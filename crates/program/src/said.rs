//! The captured output of a program.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    process::{Command, Stdio},
};

use rustix::fs::{MemfdFlags, memfd_create};

/// The output of a program, in a file without a name that disappears when it is closed. With a pipe, a thread would
/// have to read while the program runs; into a file the program can print any amount.
#[derive(Debug)]
pub struct Said(File);

impl Said {
    /// Returns an empty output.
    ///
    /// # Errors
    /// The error of the system.
    pub fn new() -> io::Result<Self> {
        Ok(Self(memfd_create("said", MemfdFlags::CLOEXEC)?.into()))
    }

    /// Returns a handle for the standard output or standard error of a program.
    ///
    /// # Errors
    /// The error of the system.
    pub fn output(&self) -> io::Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }

    /// Connects both outputs of a program to this file. The program gets no standard input.
    ///
    /// # Errors
    /// The error of the system.
    pub fn take_all_of(&self, command: &mut Command) -> io::Result<()> {
        command.stdin(Stdio::null()).stdout(self.output()?).stderr(self.output()?);
        Ok(())
    }

    /// Returns all output so far.
    ///
    /// # Errors
    /// The error of the system.
    pub fn text(&self) -> io::Result<String> {
        let length = self.0.metadata()?.len();
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        // Read at explicit offsets and do not move the file offset: it is shared with the program, which writes there.
        self.0.read_exact_at(&mut bytes, 0)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Returns the last lines that are not empty, at most `most`, joined with "; ".
#[must_use]
pub fn last_lines(said: &str, most: usize) -> String {
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(most)..].join("; ")
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use super::*;

    /// A reader that moved the offset of the file would make the program overwrite its own output.
    #[test]
    fn reading_the_output_does_not_disturb_the_program() {
        let said = Said::new().unwrap();
        // Write as a program does: through a duplicate of the descriptor, which has the same file offset.
        let mut output = said.0.try_clone().unwrap();
        output.write_all(b"one\ntwo\n").unwrap();
        output.seek(SeekFrom::Start(4)).unwrap();
        assert_eq!(said.text().unwrap(), "one\ntwo\n");
        output.write_all(b"TWO").unwrap();
        assert_eq!(said.text().unwrap(), "one\nTWO\n");
    }

    #[test]
    fn blank_lines_do_not_count_as_last_lines() {
        assert_eq!(last_lines("one\n\ntwo\n  \nthree\n", 2), "two; three");
        assert_eq!(last_lines("one\n", 8), "one");
        assert_eq!(last_lines("", 8), "");
    }
}
