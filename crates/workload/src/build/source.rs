//! The source package of the build: Dropbear, fetched once from Debian's archive.

use std::{
    fs::{self, File},
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::AtomicBool,
    time::Duration,
};

use rustix::fs::{FlockOperation, flock};

use crate::{Error, Tool, owned_folder::OwnedFolder, run_program};

const APT: Tool = Tool { program: "apt-get", package: "apt" };
const PACKAGE: &str = "dropbear";
/// Time limit of each call of apt: package lists have 10 MB and the source 2 MB, perhaps from a
/// slow mirror.
const LIMIT: Duration = Duration::from_secs(600);
/// Name of the folder that a fetch uses while it runs, in the destination folder.
const FETCHING: &str = "forebay-lab-fetching";

/// The result of fetching the source of the build.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fetched {
    pub file: PathBuf,
    /// True if the tarball existed before, so that it was not downloaded.
    pub was_there: bool,
}

/// Returns the tarball in the folder `into`, or else in the user's cache; fetches it if it is missing.
///
/// apt fetches it from the archives that this machine uses, and verifies their signatures. The package lists for this
/// are kept separately and removed; those of the machine do not change.
///
/// # Errors
/// If apt is missing, or cannot fetch the source; the error then has apt's output. If another fetch into the folder is
/// running. [`Error::Stopped`] when `stop` is set.
pub fn fetch(into: Option<&Path>, stop: &AtomicBool) -> Result<Fetched, Error> {
    let into = into.map_or_else(cache, |folder| Ok(folder.to_owned()))?;
    if let Some(file) = tarball(&into) {
        return Ok(Fetched { file, was_there: true });
    }
    let apt = APT.find()?;
    let failed = || Error::system(format!("write into {}", into.display()));
    fs::create_dir_all(&into).map_err(failed())?;
    let _ours = ours(&into)?;
    let own = OwnedFolder::make(&into, FETCHING, 64 << 20)?;
    for folder in ["lists/partial", "cache/archives/partial", "got"] {
        fs::create_dir_all(own.path().join(folder)).map_err(failed())?;
    }
    let sources = own.path().join("sources.list");
    fs::write(&sources, lines(stop)?).map_err(failed())?;
    let option = |key: &str, name: &str| format!("{key}={}", own.path().join(name).display());
    let options = [
        option("Dir::Etc::sourcelist", "sources.list"),
        "Dir::Etc::sourceparts=-".to_owned(),
        option("Dir::State::lists", "lists"),
        option("Dir::Cache", "cache"),
        // Let apt run as the current user: its own user may not read this user's cache.
        "APT::Sandbox::User=".to_owned(),
    ];
    let get = |words: &[&str]| {
        let mut command = Command::new(&apt);
        command.arg("-q").args(options.iter().flat_map(|option| ["-o", option])).args(words);
        run_program::run_unless(command.current_dir(own.path().join("got")), LIMIT, stop)
    };
    get(&["update"])?;
    get(&["source", "--download-only", PACKAGE])?;
    let got = tarball(&own.path().join("got")).ok_or_else(|| Error::Unreadable {
        program: "apt-get".to_owned(),
        what: format!("it fetched no {PACKAGE}_*.orig.tar.*"),
    })?;
    let file = into.join(got.file_name().expect("a file has a name"));
    fs::rename(&got, &file).map_err(failed())?;
    Ok(Fetched { file, was_there: false })
}

/// Locks the destination folder until the returned file is closed, so that no other fetch uses it. Removes files that a
/// killed fetch has left.
fn ours(into: &Path) -> Result<File, Error> {
    let lock = File::open(into).map_err(Error::system(format!("open {}", into.display())))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        Error::Settings(format!(
            "another process fetches into {}: wait until it has ended",
            into.display()
        ))
    })?;
    let left = into.join(FETCHING);
    match fs::remove_dir_all(&left) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::system(format!("remove {}", left.display()))(error))
        }
        _ => Ok(lock),
    }
}

/// Returns the path of the tarball that the user has named, or of the downloaded one.
pub(super) fn find(named: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(file) = named {
        // Make the path absolute, because tar runs in another working directory.
        return file.canonicalize().map_err(Error::system(format!("find {}", file.display())));
    }
    let cache = cache()?;
    tarball(&cache).ok_or_else(|| {
        let what = "fetch it with `forebay lab fetch`, or name a tarball with --source";
        Error::Settings(format!("the source to build is not in {}: {what}", cache.display()))
    })
}

/// Returns the lines of a `sources.list` for apt: the main component of the distribution, from the archives that this
/// machine uses.
fn lines(stop: &AtomicBool) -> Result<String, Error> {
    let mut command = Command::new("apt-get");
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
    command.args(["indextargets", "--format", format, "Created-By: Packages"]);
    let (said, _) = run_program::run_unless(&mut command, LIMIT, stop)?;
    let lines = sources(&said);
    if lines.is_empty() {
        let what =
            "this machine's apt has no archive of Debian or Ubuntu; name a tarball with --source";
        return Err(Error::Settings(what.to_owned()));
    }
    Ok(lines)
}

/// Takes from apt's own list of archives those of the distribution, and returns them as lines of a `sources.list`.
fn sources(said: &str) -> String {
    let of_distribution = |line: &&str| {
        let mut words = line.split(' ');
        let (uri, component) = (words.next().unwrap_or_default(), words.nth(1));
        let last = uri.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        component == Some("main") && (last.starts_with("debian") || last.starts_with("ubuntu"))
    };
    let mut lines: Vec<&str> = said.lines().filter(of_distribution).collect();
    lines.sort_unstable();
    lines.dedup();
    lines.into_iter().map(|line| format!("deb-src {line}\n")).collect()
}

/// Returns the path of the Dropbear tarball in a folder. If there are several, returns the last one
/// by name.
fn tarball(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let is_ours = |name: &String| {
        let form = name.strip_prefix(PACKAGE).and_then(|rest| rest.split_once(".orig.tar."));
        form.is_some_and(|(version, packed)| version.starts_with('_') && !packed.contains('.'))
    };
    Some(folder.join(names.filter(is_ours).max()?))
}

fn cache() -> Result<PathBuf, Error> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")));
    let none = || Error::Settings("neither HOME nor XDG_CACHE_HOME is set".to_owned());
    Ok(cache.ok_or_else(none)?.join("forebay-lab"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_come_from_the_archives_of_the_distribution() {
        let said = "http://deb.debian.org/debian/ bookworm main\n\
                    https://deb.nodesource.com/node_20.x/ nodistro main\n\
                    http://deb.debian.org/debian/ bookworm main\n\
                    http://deb.debian.org/debian/ bookworm contrib\n\
                    http://security.debian.org/debian-security/ bookworm-security main\n";
        let lines = "deb-src http://deb.debian.org/debian/ bookworm main\n\
                     deb-src http://security.debian.org/debian-security/ bookworm-security main\n";
        assert_eq!(sources(said), lines);
    }

    #[test]
    fn an_existing_source_is_not_fetched_again() {
        let folder = tempfile::tempdir().unwrap();
        let name = |name: &str| folder.path().join(name);
        fs::write(name("dropbear_2022.83.orig.tar.bz2.asc"), "").unwrap();
        fs::write(name("dropbear_2022.83-1.debian.tar.xz"), "").unwrap();
        assert_eq!(tarball(folder.path()), None);
        let file = name("dropbear_2022.83.orig.tar.bz2");
        fs::write(&file, "").unwrap();
        let fetched = fetch(Some(folder.path()), &AtomicBool::new(false));
        assert_eq!(fetched.unwrap(), Fetched { file, was_there: true });
    }

    #[test]
    fn leftovers_of_a_killed_fetch_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(FETCHING);
        fs::create_dir_all(left.join("lists/partial")).unwrap();
        let fetching = ours(folder.path()).unwrap();
        assert!(!left.exists());
        let own = OwnedFolder::make(folder.path(), FETCHING, 0).unwrap();
        let error = ours(folder.path()).unwrap_err().to_string();
        assert!(error.contains("another process fetches") && own.path().exists(), "{error}");
        drop((own, fetching));
        ours(folder.path()).unwrap();
    }
}
