//! The name of the file on which a loop device is set up. The name contains the volume and the process that serves the
//! file. After a process was killed, this name is the only trace of the process.

use std::fmt;

use crate::HostProcess;

/// The name of a file over a volume: `forebay-VOLUME-PID.START-ABOUT`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileName {
    /// The key of the volume: at most 64 letters and digits.
    pub volume: String,
    pub process: HostProcess,
    /// A description of the volume, for display.
    about: String,
}

impl FileName {
    /// Makes the name of a file: `volume` identifies the volume, `process` serves the file, and `about` describes the
    /// volume for readers. Characters of `about` that are not allowed in a name become `_`.
    ///
    /// # Panics
    /// If `volume` does not consist of at most 64 letters and digits.
    #[must_use]
    pub fn new(volume: &str, process: HostProcess, about: &str) -> Self {
        let is_key = volume.chars().all(|c| c.is_ascii_alphanumeric()) && volume.len() <= 64;
        assert!(is_key, "{volume}");
        let known = |c: char| c.is_ascii_alphanumeric() || "-.:".contains(c);
        // The whole name is shorter than the 255 bytes that a name may have.
        let about = about.chars().map(|c| if known(c) { c } else { '_' }).take(128).collect();
        Self { volume: volume.into(), process, about }
    }

    /// Parses the name as the kernel shows it. Returns `None` if another program has made it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // The kernel shows only the name of a file that is mounted nowhere, perhaps followed by a word such
        // as `(deleted)`.
        let name = text.trim().trim_start_matches('/').split(' ').next()?;
        let (volume, rest) = name.strip_prefix(PREFIX)?.split_once('-')?;
        let (process, about) = rest.split_once('-')?;
        let (volume, about) = (volume.to_owned(), about.to_owned());
        Some(Self { volume, process: HostProcess::parse(process)?, about })
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}-{}-{}", self.volume, self.process, self.about)
    }
}

const PREFIX: &str = "forebay-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_parsed_as_the_kernel_shows_it() {
        let process = HostProcess { id: 12, started: 345 };
        let name = FileName::new("abc1", process, "10.0.0.1:3260/iqn.2026-11.x:y/0 ä");
        assert_eq!(name.to_string(), "forebay-abc1-12.345-10.0.0.1:3260_iqn.2026-11.x:y_0__");
        for shown in [format!("/{name}\n"), format!("/{name} (deleted)\n")] {
            assert_eq!(FileName::parse(&shown), Some(name.clone()));
        }
        for other in
            ["", "/srv/disk.img", "/forebay-disk.img", "/forebay-a-b-c", "/forebay-a-1.x-c"]
        {
            assert_eq!(FileName::parse(other), None);
        }
        assert!(FileName::new(&"a".repeat(64), process, &"b".repeat(500)).to_string().len() < 255);
    }
}
