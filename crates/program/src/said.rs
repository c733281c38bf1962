//! What a program says.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    process::{Command, Stdio},
};

use rustix::fs::{MemfdFlags, memfd_create};

/// What is said, in a file without a name, gone when it is closed. A file and not a pipe: nobody has to read while the
/// program runs, however much it says.
#[derive(Debug)]
pub struct Said(File);

impl Said {
    /// Nothing yet.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> io::Result<Self> {
        Ok(Self(memfd_create("said", MemfdFlags::CLOEXEC)?.into()))
    }

    /// What one output of a program is to be.
    ///
    /// # Errors
    /// What the system says.
    pub fn output(&self) -> io::Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }

    /// Takes what a program that reads nothing says on both its outputs.
    ///
    /// # Errors
    /// What the system says.
    pub fn take_all_of(&self, command: &mut Command) -> io::Result<()> {
        command.stdin(Stdio::null()).stdout(self.output()?).stderr(self.output()?);
        Ok(())
    }

    /// All that was said so far.
    ///
    /// # Errors
    /// What the system says.
    pub fn text(&self) -> io::Result<String> {
        let length = self.0.metadata()?.len();
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        // At a place of our own: that of the file is where the program writes next.
        self.0.read_exact_at(&mut bytes, 0)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The last lines that are not empty, so many at most, in one.
#[must_use]
pub fn last_lines(said: &str, most: usize) -> String {
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(most)..].join("; ")
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use super::*;

    /// Who moves the place at which the program writes would have it write over what it has said.
    #[test]
    fn who_reads_what_a_program_says_is_not_in_its_way() {
        let said = Said::new().unwrap();
        // As the program has it.
        let mut output = said.0.try_clone().unwrap();
        output.write_all(b"one\ntwo\n").unwrap();
        output.seek(SeekFrom::Start(4)).unwrap();
        assert_eq!(said.text().unwrap(), "one\ntwo\n");
        output.write_all(b"TWO").unwrap();
        assert_eq!(said.text().unwrap(), "one\nTWO\n");
    }

    #[test]
    fn the_last_lines_are_those_that_say_something() {
        assert_eq!(last_lines("one\n\ntwo\n  \nthree\n", 2), "two; three");
        assert_eq!(last_lines("one\n", 8), "one");
        assert_eq!(last_lines("", 8), "");
    }
}
