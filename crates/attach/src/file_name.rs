//! What the file below a loop device is called: whose it is, and which process serves it. That is all
//! that is left of a process that was killed.

use std::fmt;

use crate::HostProcess;

/// The name of a file over a volume: `forebay-VOLUME-PID.START-ABOUT`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileName {
    /// Letters and digits that are the volume's alone.
    pub volume: String,
    /// Who serves it.
    pub process: HostProcess,
    /// Something for people.
    about: String,
}

impl FileName {
    /// A name for a volume; of `about` what a name may hold.
    ///
    /// # Panics
    /// `volume` is not letters and digits, at most 64.
    #[must_use]
    pub fn new(volume: &str, process: HostProcess, about: &str) -> Self {
        let is_key = volume.chars().all(|c| c.is_ascii_alphanumeric()) && volume.len() <= 64;
        assert!(is_key, "{volume}");
        let known = |c: char| c.is_ascii_alphanumeric() || "-.:".contains(c);
        // With all the rest less than the 255 bytes that a name may have.
        let about = about.chars().map(|c| if known(c) { c } else { '_' }).take(128).collect();
        Self { volume: volume.into(), process, about }
    }

    /// As the kernel shows it; `None` if it is not ours.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // Of a file without a place the kernel shows the name, perhaps with a word after it.
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
    fn a_name_is_read_as_the_kernel_shows_it() {
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
