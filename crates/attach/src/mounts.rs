//! Lists mounts of the own and of other mount namespaces, from `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct MountLine {
    /// Number of the mounted device, as `MAJOR:MINOR`.
    pub(crate) device: String,
    pub(crate) place: PathBuf,
    /// The path or name that was mounted. Comparisons use this path in addition to the device number, because some file
    /// systems use device numbers of their own.
    pub(crate) source: PathBuf,
    /// The peer group of the mount. A mount or unmount below one member takes effect below all members.
    shared: Option<u32>,
    /// The peer group from which the mount only receives mounts and unmounts.
    receives_from: Option<u32>,
}

impl MountLine {
    /// Returns all mounts that this process can see.
    pub(crate) fn all() -> Vec<Self> {
        Self::of(Path::new("/proc/self"))
    }

    /// Returns the mounts that the process with this folder in `/proc` sees; none if the process has ended.
    fn of(process: &Path) -> Vec<Self> {
        let text = fs::read(process.join("mountinfo")).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().filter_map(Self::parse).collect()
    }

    /// Parses a line such as `36 35 98:0 /root /place options shared:1 master:2 - type source options`.
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(2);
        let device = fields.next()?.to_owned();
        let place = unescape(fields.nth(1)?).into();
        let optional: Vec<&str> = fields.skip(1).collect();
        let group = |name| optional.iter().find_map(|field| field.strip_prefix(name)?.parse().ok());
        let source = unescape(after.split(' ').nth(1)?).into();
        Some(Self {
            device,
            place,
            source,
            shared: group("shared:"),
            receives_from: group("master:"),
        })
    }
}

/// Decodes the octal codes that mountinfo has in place of spaces, tabs, line ends and backslashes.
fn unescape(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(field.to_owned(), |field, (code, text)| field.replace(code, text))
}

/// Returns the mounts that the login session sees from which this process was started (its outermost ancestor). Returns
/// `None` if that session has the mount namespace of this process, or cannot be found.
pub(crate) fn of_session_elsewhere() -> Option<Vec<MountLine>> {
    let namespace = |id: u32| fs::read_link(format!("/proc/{id}/ns/mnt")).ok();
    let this = std::process::id();
    // The kernel reports parent 0 for a process whose parent is in another PID namespace or does not exist. We may
    // not be allowed to read the namespace of every process.
    let ancestors = std::iter::successors(parent(this), |id| parent(*id)).take(MOST_ANCESTORS);
    let outermost = ancestors.filter(|id| *id > 0 && namespace(*id).is_some()).last()?;
    let is_elsewhere = namespace(this)? != namespace(outermost)?;
    is_elsewhere.then(|| MountLine::of(&PathBuf::from(format!("/proc/{outermost}"))))
}

/// Limits the search for ancestors: processes may end and their numbers be reused during it, which could
/// make a loop.
const MOST_ANCESTORS: usize = 1024;

fn parent(id: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Looks for mounts in other mount namespaces that `is_meant` accepts. Returns those that remain when the mounts `here`
/// of this namespace are unmounted, each with the id of a process that sees the mount. Namespaces without a process
/// that we can see are left out.
pub(crate) fn elsewhere(
    here: &[MountLine],
    is_meant: impl Fn(&MountLine) -> bool,
) -> Vec<(u32, PathBuf)> {
    // Distinguish processes by their root directories, too: these decide which mounts of the namespace they see.
    let view = |process: &Path| {
        let link = |name: &str| fs::read_link(process.join(name)).ok();
        link("ns/mnt").zip(link("root"))
    };
    let own = view(Path::new("/proc/self")).map(|(namespace, _)| namespace);
    let mut seen = BTreeSet::new();
    let mut found: Vec<(u32, MountLine)> = Vec::new();
    for id in processes() {
        let process = PathBuf::from(format!("/proc/{id}"));
        let Some(view) = view(&process) else { continue };
        if Some(&view.0) == own.as_ref() || !seen.insert(view) {
            continue;
        }
        found.extend(MountLine::of(&process).into_iter().filter(&is_meant).map(|line| (id, line)));
    }
    let lines: Vec<&MountLine> = here.iter().chain(found.iter().map(|(_, line)| line)).collect();
    let followed = followed(here, &lines);
    let stays = |line: &MountLine| {
        let groups = [line.shared, line.receives_from];
        !groups.into_iter().flatten().any(|group| followed.contains(&group))
    };
    found.into_iter().filter(|(_, line)| stays(line)).map(|(id, line)| (id, line.place)).collect()
}

/// Returns the peer groups whose mounts the kernel unmounts together with the mounts `here`.
fn followed(here: &[MountLine], all: &[&MountLine]) -> BTreeSet<u32> {
    let mut groups: BTreeSet<u32> = here.iter().filter_map(|line| line.shared).collect();
    loop {
        let receiving = all
            .iter()
            .filter(|line| line.receives_from.is_some_and(|group| groups.contains(&group)));
        let more: Vec<u32> = receiving.filter_map(|line| line.shared).collect();
        let before = groups.len();
        groups.extend(more);
        if groups.len() == before {
            return groups;
        }
    }
}

/// Returns the numbers of all processes in our `/proc`, in ascending order.
fn processes() -> BTreeSet<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(groups: &str) -> MountLine {
        let text = format!("36 35 7:3 / /mnt rw,noatime {groups}- ext4 /dev/loop3 rw");
        MountLine::parse(&text).unwrap()
    }

    #[test]
    fn a_mount_is_read() {
        let text = "36 35 7:3 / /mnt/a\\040b rw,noatime shared:1 master:20 - ext4 /dev/loop3 rw";
        let mount = MountLine::parse(text).unwrap();
        assert_eq!(mount.device, "7:3");
        assert_eq!(mount.place, Path::new("/mnt/a b"));
        assert_eq!(mount.source, Path::new("/dev/loop3"));
        assert_eq!((mount.shared, mount.receives_from), (Some(1), Some(20)));
        assert_eq!((line("").shared, line("").receives_from), (None, None));
        assert!(MountLine::parse("").is_none() && MountLine::parse("1 2 - ext4").is_none());
    }

    #[test]
    fn copies_that_receive_our_unmounts_are_followed_over_several_namespaces() {
        let here = [line("shared:1 ")];
        let copies = [line("shared:2 master:1 "), line("master:2 "), line(""), line("shared:9 ")];
        let all: Vec<&MountLine> = here.iter().chain(&copies).collect();
        assert_eq!(followed(&here, &all), BTreeSet::from([1, 2]));
        assert!(followed(&[line("")], &all).is_empty());
        // An unmount in peer group 1 also takes effect on each of these mounts, directly or through another group.
        let copies = [line("shared:3 master:2 "), line("shared:2 master:1 "), line("master:3 ")];
        let all: Vec<&MountLine> = here.iter().chain(&copies).collect();
        assert_eq!(followed(&here, &all), BTreeSet::from([1, 2, 3]));
    }
}
