//! A software build like the SSH benchmark of the papers: unpack, configure, make.
//!
//! The package is Dropbear, a small SSH server, from Debian's archive; see `source`.

mod source;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use rustix::fs::syncfs;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Tool, Workload, WorkloadResult, WorkloadRun,
    owned_folder::OwnedFolder,
    run_program,
    uncached_sums::{self, Sum},
};
pub use source::{Fetched, fetch};

const TOOLS: [Tool; 4] = [
    Tool { program: "tar", package: "tar" },
    Tool { program: "bzip2", package: "bzip2" },
    Tool { program: "make", package: "make" },
    Tool { program: "cc", package: "gcc" },
];
/// Time limit of one phase. The longest phase, make, takes half a minute on two cores, and in the paper the slowest
/// build took a third longer than the fastest. A phase that takes an hour is stuck.
const LIMIT: Duration = Duration::from_secs(3600);
/// Bytes that must be free: Dropbear with its objects takes 18 MB; another source may be larger.
const SPACE: u64 = 256 << 20;

/// Settings of the workload that builds software.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, clap::Args)]
#[serde(deny_unknown_fields, default)]
pub struct Build {
    /// Source to build, a tarball with a `configure`. Without this option, Dropbear's, which
    /// `forebay lab fetch` has fetched
    #[arg(long, value_name = "FILE")]
    pub source: Option<PathBuf>,
    /// Number of builds, one after the other
    #[arg(long, default_value_t = 1)]
    pub iterations: u32,
    /// Commands that make runs concurrently
    #[arg(long, default_value_t = 2)]
    pub jobs: u32,
    /// Options for the script configure
    #[arg(long, value_name = "OPTIONS", default_value = CONFIGURE, allow_hyphen_values = true)]
    pub configure: String,
    /// Goal for make. Without this option, make builds everything
    #[arg(long, value_name = "NAME")]
    pub goal: Option<String>,
    /// Command that is run in the built tree and must succeed
    #[arg(long, value_name = "COMMAND", default_value = PROOF)]
    pub proof: String,
    /// Also build on this machine's own disk, and compare the objects and programs of both builds
    #[arg(long)]
    pub reference: bool,
}

/// Options for configure, which build without zlib, because some machines lack its header files.
const CONFIGURE: &str = "--disable-zlib";
/// A command that proves that the build has succeeded: the server that was built prints its version.
const PROOF: &str = "./dropbear -V";

impl Default for Build {
    fn default() -> Self {
        Self {
            source: None,
            iterations: 1,
            jobs: 2,
            configure: CONFIGURE.to_owned(),
            goal: None,
            proof: PROOF.to_owned(),
            reference: false,
        }
    }
}

impl Workload for Build {
    fn needs(&self) -> Vec<Tool> {
        TOOLS.to_vec()
    }

    fn check(&self) -> Result<(), Error> {
        if self.iterations == 0 || self.jobs == 0 {
            return Err(Error::Settings(
                "a build needs at least one iteration and one job".to_owned(),
            ));
        }
        Ok(())
    }

    fn ready(&self) -> Result<(), Error> {
        source::find(self.source.as_deref()).map(drop)
    }

    fn space(&self) -> u64 {
        SPACE
    }

    fn run(&self, run: &WorkloadRun<'_>) -> Result<WorkloadResult, Error> {
        let folder = run.folder("a build")?;
        self.check()?;
        let source = source::find(self.source.as_deref())?;
        let unpacked = OwnedFolder::make(run.scratch, "unpacked", 0)?;
        self.unpack(&source, unpacked.path())?;
        let original = uncached_sums::sums(unpacked.path())?;
        let reference = self.reference.then(|| self.reference(&source, run)).transpose()?;
        let mut taken = Phases::default();
        for iteration in 0..self.iterations {
            let done = |phase: f64| {
                (run.progress)((f64::from(iteration) + phase / 4.0) / f64::from(self.iterations));
            };
            let own = OwnedFolder::make(folder, "forebay-lab-build", SPACE)?;
            taken.add(self.build(&source, own.path(), &done)?);
            self.verify(own.path(), &original, reference.as_ref())?;
            own.remove()?;
            done(4.0);
        }
        let whole = taken.unpack + taken.configure + taken.make;
        let each = |all: Duration| all.as_secs_f64() / f64::from(self.iterations);
        let compared = if self.reference {
            ", and the object files with those of a build elsewhere"
        } else {
            ""
        };
        Ok(WorkloadResult {
            verified: format!(
                "every file, read from storage, with the content that was unpacked or built{compared}; the program ran"
            ),
            ..WorkloadResult::default()
        }
        .figure("builds", "1/h", 3600.0 / each(whole))
        .figure("unpack", "s", each(taken.unpack))
        .figure("configure", "s", each(taken.configure))
        .figure("make", "s", each(taken.make))
        .figure("write out after it", "s", each(taken.sync)))
    }
}

/// The time that each phase of a build took.
#[derive(Clone, Copy, Default)]
struct Phases {
    unpack: Duration,
    configure: Duration,
    make: Duration,
    /// The time from the end of the build until all data was stable. It is not part of the
    /// benchmark.
    sync: Duration,
}

impl Phases {
    fn add(&mut self, other: Self) {
        self.unpack += other.unpack;
        self.configure += other.configure;
        self.make += other.make;
        self.sync += other.sync;
    }
}

impl Build {
    /// Runs the phases one after the other. Between them, the page cache is neither written out nor
    /// dropped.
    fn build(&self, source: &Path, folder: &Path, done: &dyn Fn(f64)) -> Result<Phases, Error> {
        let unpack = self.unpack(source, folder)?;
        done(1.0);
        let tree = tree(folder)?;
        let options = self.configure.split_whitespace();
        let mut command = Command::new("./configure");
        let (_, configure) =
            run_program::run(command.arg("--quiet").args(options).current_dir(&tree), LIMIT)?;
        done(2.0);
        let mut command = Command::new("make");
        command.arg(format!("-j{}", self.jobs)).args(&self.goal).current_dir(&tree);
        let (_, make) = run_program::run(&mut command, LIMIT)?;
        done(3.0);
        let begun = Instant::now();
        let failed = || Error::system(format!("write out {}", folder.display()));
        let whole = fs::File::open(folder).map_err(failed())?;
        syncfs(&whole).map_err(|error| failed()(error.into()))?;
        Ok(Phases { unpack, configure, make, sync: begun.elapsed() })
    }

    fn unpack(&self, source: &Path, folder: &Path) -> Result<Duration, Error> {
        let mut command = Command::new("tar");
        // Extract as the current user: ignore the owners in the archive.
        command.arg("--no-same-owner").arg("-xf").arg(source).arg("-C").arg(folder);
        Ok(run_program::run(&mut command, LIMIT)?.1)
    }

    /// Builds in the scratch folder, which is not on the storage under test, and returns checksums of the objects and
    /// programs.
    fn reference(
        &self,
        source: &Path,
        run: &WorkloadRun<'_>,
    ) -> Result<BTreeMap<PathBuf, Sum>, Error> {
        let own = OwnedFolder::make(run.scratch, "reference", SPACE)?;
        self.build(source, own.path(), &|_| ())?;
        built(own.path())
    }

    fn verify(
        &self,
        folder: &Path,
        original: &BTreeMap<PathBuf, Sum>,
        reference: Option<&BTreeMap<PathBuf, Sum>>,
    ) -> Result<(), Error> {
        let in_memory = uncached_sums::sums(folder)?;
        uncached_sums::forget(folder)?;
        let stored = uncached_sums::sums(folder)?;
        if let Some(path) = uncached_sums::difference(&in_memory, &stored) {
            let what = format!("{} has other content when it is read from storage", path.display());
            return Err(Error::Wrong(what));
        }
        if let Some(path) = altered(original, &stored) {
            let what = format!("{} differs from the archive", path.display());
            return Err(Error::Wrong(what));
        }
        if let Some(reference) = reference {
            let built = built(folder)?;
            if let Some(path) = uncached_sums::difference(reference, &built) {
                let what = format!("{} differs from the build elsewhere", path.display());
                return Err(Error::Wrong(what));
            }
        }
        let tree = tree(folder)?;
        let mut command = Command::new("sh");
        run_program::run(command.args(["-c", &self.proof]).current_dir(tree), LIMIT)?;
        Ok(())
    }
}

/// Compares the unpacked files with the archive and returns the first that is missing or wrong. A file is wrong if its
/// content has changed but its modification time has not; a changed modification time is no fault, since a build may
/// write its own sources.
fn altered<'a>(
    original: &'a BTreeMap<PathBuf, Sum>,
    stored: &BTreeMap<PathBuf, Sum>,
) -> Option<&'a Path> {
    let wrong = |(path, sum): &(&PathBuf, &Sum)| match stored.get(*path) {
        None => true,
        Some(found) => found.changed == sum.changed && found != *sum,
    };
    original.iter().find(wrong).map(|(path, _)| path.as_path())
}

/// Returns the checksums of objects, archives of objects and programs. Other files are left out,
/// since they contain the path or the time of the build.
fn built(folder: &Path) -> Result<BTreeMap<PathBuf, Sum>, Error> {
    let mut sums = uncached_sums::sums(folder)?;
    sums.retain(|path, _| {
        use std::io::Read;
        let mut magic = [0; 8];
        let read = fs::File::open(folder.join(path)).and_then(|mut file| file.read(&mut magic));
        read.is_ok() && (magic.starts_with(b"\x7fELF") || &magic == b"!<arch>\n")
    });
    Ok(sums)
}

/// Returns the unpacked folder that contains a `configure`.
fn tree(folder: &Path) -> Result<PathBuf, Error> {
    let entries = fs::read_dir(folder).map_err(Error::system("read the unpacked source"))?;
    let mut folders = entries.flatten().map(|entry| entry.path());
    folders
        .find(|path| path.join("configure").is_file())
        .ok_or_else(|| Error::Settings("the source has no configure".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folders::TrialFolders;

    /// Makes a tarball for tests: a program with a `configure` and a Makefile.
    fn package(folder: &Path) -> PathBuf {
        let tree = folder.join("tiny-1");
        fs::create_dir(&tree).unwrap();
        let write = |name: &str, text: &str| fs::write(tree.join(name), text).unwrap();
        write("configure", "#!/bin/sh\necho '#define SAID 0' > config.h\n");
        write("tiny.c", "#include \"config.h\"\nint main(void) { return SAID; }\n");
        write(
            "Makefile",
            "tiny: tiny.o\n\tcc -o tiny tiny.o\ntiny.o: tiny.c config.h\n\tcc -c tiny.c\n",
        );
        let script = "chmod +x tiny-1/configure && tar -czf tiny.tar.gz tiny-1";
        run_program::run(Command::new("sh").args(["-c", script]).current_dir(folder), LIMIT)
            .unwrap();
        folder.join("tiny.tar.gz")
    }

    #[test]
    fn a_build_is_compared_and_leaves_nothing() {
        let Some(trial) = TrialFolders::with(&TOOLS) else { return };
        let given = tempfile::tempdir().unwrap();
        let task = Build {
            source: Some(package(given.path())),
            iterations: 2,
            proof: "./tiny".to_owned(),
            reference: true,
            ..Build::default()
        };
        let outcome = trial.run(&task).unwrap();
        assert!(outcome.get("builds").unwrap() > 0.0, "{outcome:?}");
        let broken = Build { proof: "./absent".to_owned(), ..task };
        assert!(matches!(trial.run(&broken), Err(Error::Program { .. })));
    }

    /// Run with `cargo test -p workload -- --ignored dropbear`: fetches 12 MB, and builds for a minute on two cores.
    #[test]
    #[ignore = "fetches from Debian's archive and builds for a minute"]
    fn dropbear_is_fetched_and_built() {
        let (trial, given) = (TrialFolders::new(), tempfile::tempdir().unwrap());
        let going = std::sync::atomic::AtomicBool::new(false);
        let fetched = fetch(Some(given.path()), &going).unwrap();
        assert!(!fetched.was_there);
        assert!(fetch(Some(given.path()), &going).unwrap().was_there);
        let task = Build { source: Some(fetched.file), reference: true, ..Build::default() };
        println!("{:?}", trial.run(&task).unwrap());
    }

    #[test]
    fn a_changed_source_or_object_file_is_an_error() {
        let Some(trial) = TrialFolders::with(&TOOLS) else { return };
        let (folder, given) = (trial.folder(), tempfile::tempdir().unwrap());
        let task = Build { proof: "./tiny".to_owned(), ..Build::default() };
        task.build(&package(given.path()), folder, &|_| ()).unwrap();
        let original = uncached_sums::sums(folder).unwrap();
        task.verify(folder, &original, Some(&built(folder).unwrap())).unwrap();
        let damage = |name: &str| {
            let path = folder.join("tiny-1").join(name);
            let before = (fs::read(&path).unwrap(), path.metadata().unwrap().modified().unwrap());
            let mut bytes = before.0.clone();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(&path, bytes).unwrap();
            fs::File::open(&path).unwrap().set_modified(before.1).unwrap();
            before.0
        };
        let built = built(folder).unwrap();
        let was = damage("tiny.c");
        let error = task.verify(folder, &original, None).unwrap_err().to_string();
        assert!(error.contains("tiny.c differs from the archive"), "{error}");
        fs::write(folder.join("tiny-1/tiny.c"), was).unwrap();
        damage("tiny.o");
        let error = task.verify(folder, &BTreeMap::new(), Some(&built)).unwrap_err();
        assert!(error.to_string().contains("tiny.o differs from the build"), "{error}");
    }
}
