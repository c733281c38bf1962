//! The file of results, `results.jsonl`. It has a line for each point that was measured or left
//! out, written as soon as the point has ended. If a point has several lines, the last one is used.
//! Lines with other settings, or of another program or machine, are ignored.

use std::{
    collections::BTreeMap,
    fs::{self, File, Metadata},
    io::Write as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Error, ExperimentPoint, PointRecord, maker};

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(untagged)]
enum ResultsFileLine {
    Measured(Box<PointRecord>),
    LeftOut(LeftOut),
}

/// A point that was left out, with the reason.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    pub point: String,
    /// The reason why the point was not measured.
    pub left_out: String,
}

/// The beginning of every line. Both kinds of lines begin with the name of the point.
const HEAD: &[u8] = b"{\"point\":\"";
/// Number of attempts to open the file. More than one is needed because a run that ends without
/// results removes its file, perhaps while another run opens it.
const ATTEMPTS: usize = 8;

/// The file of results in a folder. One run at a time can use it. Dropping it removes the file if
/// it is empty, and the folders that this run has created if they are empty.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    file: File,
    /// True if this run has created the results file.
    made_file: bool,
    lines: Vec<ResultsFileLine>,
    maker: BTreeMap<String, String>,
    /// Fields are dropped in the order of their declaration. The file is removed before this field is dropped, which
    /// removes the folders if they are empty.
    _made: MadeFolders,
}

/// The folders of a path that did not exist before, the deepest first. Dropping it removes those
/// that are empty.
#[derive(Debug)]
struct MadeFolders(Vec<PathBuf>);

impl MadeFolders {
    fn make(folder: &Path) -> Result<Self, Error> {
        let missing = folder.ancestors().take_while(|it| *it != Path::new("") && !it.exists());
        // Collect the folders first, so that they are removed even if only some of them can be
        // created.
        let made = Self(missing.map(Path::to_owned).collect());
        fs::create_dir_all(folder).map_err(Error::file("make", folder))?;
        Ok(made)
    }
}

impl Drop for MadeFolders {
    fn drop(&mut self) {
        for folder in &self.0 {
            // Ignore the error: a folder with content cannot be removed, and stays.
            let _ = fs::remove_dir(folder);
        }
    }
}

impl Results {
    /// Opens or creates the file. If its last line is incomplete because its run was killed, that
    /// line is removed.
    ///
    /// # Errors
    /// If another run uses the file, the folder has other files and no results, or a line is
    /// invalid.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        Self::of_maker(folder, maker())
    }

    fn of_maker(folder: &Path, maker: BTreeMap<String, String>) -> Result<Self, Error> {
        let made = MadeFolders::make(folder)?;
        let path = folder.join("results.jsonl");
        let mut there = fs::read_dir(folder).map_err(Error::file("read", folder))?;
        let made_file = !path.exists();
        if made_file && there.next().is_some() {
            let folder = folder.display();
            return Err(Error::Folder(format!(
                "{folder} has other files and no results.jsonl; nothing in it was changed"
            )));
        }
        let file = locked(&path)?;
        let mut results = Self { path, file, made_file, lines: Vec::new(), maker, _made: made };
        results.lines = results.read()?;
        Ok(results)
    }

    /// Reads the file. If a run was killed while it wrote, the last line is incomplete. The incomplete line is removed,
    /// if all lines before are valid and the line begins like a result.
    fn read(&self) -> Result<Vec<ResultsFileLine>, Error> {
        let (path, shown) = (&self.path, self.path.display());
        let foreign = |what: String| Error::Folder(format!("{what}; nothing was changed"));
        let bytes = fs::read(path).map_err(Error::file("read", path))?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        // Ignore the incomplete last line: it may end within a character.
        let (text, half) = bytes.split_at(whole);
        let text = std::str::from_utf8(text)
            .map_err(|_| foreign(format!("{shown} is not text, so it has no results")))?;
        let lines = (1..).zip(text.lines()).map(|(number, line)| {
            serde_json::from_str(line).map_err(|error| {
                foreign(format!(
                    "line {number} of {shown} is not a result, or is from another version of Forebay ({error})"
                ))
            })
        });
        let lines = lines.collect::<Result<_, _>>()?;
        if !half.starts_with(HEAD) && !HEAD.starts_with(half) {
            return Err(foreign(format!("the end of {shown} is not a result")));
        }
        if !half.is_empty() {
            self.file.set_len(whole as u64).map_err(Error::file("mend", path))?;
        }
        Ok(lines)
    }

    /// Returns the record of a point, if this program has measured it on this machine with the
    /// current settings and has not left it out later.
    #[must_use]
    pub fn of(&self, point: &ExperimentPoint) -> Option<&PointRecord> {
        match self.last(point)? {
            ResultsFileLine::Measured(record) => Some(record),
            ResultsFileLine::LeftOut(_) => None,
        }
    }

    /// Returns true if a point was measured with the current settings, but only by another program
    /// or on another machine.
    #[must_use]
    pub fn is_of_others(&self, point: &ExperimentPoint) -> bool {
        let wanted = settings(point);
        let is_it = |line: &ResultsFileLine| matches!(line, ResultsFileLine::Measured(it) if it.point == point.name && it.settings == wanted);
        self.last(point).is_none() && self.lines.iter().any(is_it)
    }

    /// Returns the last line of a point with the current settings, by this program on this machine.
    fn last(&self, point: &ExperimentPoint) -> Option<&ResultsFileLine> {
        let wanted = settings(point);
        self.lines.iter().rev().find(|line| match line {
            ResultsFileLine::Measured(record) => {
                record.point == point.name
                    && record.settings == wanted
                    && record.maker == self.maker
            }
            ResultsFileLine::LeftOut(left_out) => left_out.point == point.name,
        })
    }

    /// Returns the records of these points, in their order, and the points that were left out.
    #[must_use]
    pub fn of_all(&self, points: &[ExperimentPoint]) -> (Vec<PointRecord>, Vec<LeftOut>) {
        let (mut records, mut left_out) = (Vec::new(), Vec::new());
        for point in points {
            match self.last(point) {
                Some(ResultsFileLine::Measured(record)) => records.push((**record).clone()),
                Some(ResultsFileLine::LeftOut(reason)) => left_out.push(reason.clone()),
                None if self.is_of_others(point) => left_out.push(LeftOut {
                    point: point.name.clone(),
                    left_out: "it was measured by another program or on another machine".to_owned(),
                }),
                None => {}
            }
        }
        (records, left_out)
    }

    /// Returns the program and machine that all added records get.
    #[must_use]
    pub fn maker(&self) -> &BTreeMap<String, String> {
        &self.maker
    }

    /// Adds the record of a measured point to the results file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn measured(&mut self, record: PointRecord) -> Result<(), Error> {
        self.add(ResultsFileLine::Measured(Box::new(PointRecord {
            maker: self.maker.clone(),
            ..record
        })))
    }

    /// Adds a point that was left out, and the reason, to the results file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn left_out(&mut self, point: &str, reason: &str) -> Result<(), Error> {
        self.add(ResultsFileLine::LeftOut(LeftOut {
            point: point.to_owned(),
            left_out: reason.to_owned(),
        }))
    }

    fn add(&mut self, line: ResultsFileLine) -> Result<(), Error> {
        let failed = || Error::file("write", &self.path);
        let mut text =
            serde_json::to_string(&line).map_err(|error| failed()(std::io::Error::other(error)))?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).map_err(failed())?;
        self.file.sync_data().map_err(failed())?;
        self.lines.push(line);
        Ok(())
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        // Keep the file if the folder also has a report: without a file of results, the next run
        // would refuse the folder as foreign.
        if self.made_file && self.lines.is_empty() && is_alone(&self.path) {
            // Remove the file while this run still holds its lock. Another run that waits for the lock checks
            // afterwards whether the path still leads to the file that it has locked.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns true if the folder of `file` contains only this file.
fn is_alone(file: &Path) -> bool {
    let there = file.parent().and_then(|folder| fs::read_dir(folder).ok());
    there.is_some_and(|mut there| there.all(|it| it.is_ok_and(|it| it.path() == file)))
}

/// Opens or creates the results file, and locks it for this run.
fn locked(path: &Path) -> Result<File, Error> {
    for _ in 0..ATTEMPTS {
        let file = File::options().create(true).append(true).open(path);
        let file = file.map_err(Error::file("open", path))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Error::Folder(format!("another run writes to {}", path.display())))?;
        let opened = file.metadata().map_err(Error::file("look at", path))?;
        let same = |now: Metadata| (now.dev(), now.ino()) == (opened.dev(), opened.ino());
        if fs::metadata(path).is_ok_and(same) {
            return Ok(file);
        }
    }
    Err(Error::Folder(format!("other runs write to {}", path.display())))
}

/// Returns the settings of a point that determine its result. The estimated time is not among them.
#[must_use]
pub fn settings(point: &ExperimentPoint) -> Value {
    json!({ "site": point.site, "task": point.task, "runs": point.runs, "windows": point.windows })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::LabSite;
    use workload::{Postmark, WorkloadResult, WorkloadTask};

    pub fn point(name: &str) -> ExperimentPoint {
        ExperimentPoint {
            name: name.to_owned(),
            site: LabSite::default(),
            task: WorkloadTask::Postmark(Postmark::default()),
            runs: 1,
            seconds: 1.0,
            windows: false,
        }
    }

    fn record(point: &ExperimentPoint) -> PointRecord {
        PointRecord {
            point: point.name.clone(),
            settings: settings(point),
            outcome: WorkloadResult::default().figure("transactions", "1/s", 0.1 + 0.2),
            maker: Default::default(),
            runs: vec![0.3],
            counted: Vec::new(),
            taints: Vec::new(),
            notes: Default::default(),
            began: 1,
            took: 2.5,
        }
    }

    #[test]
    fn a_result_is_found_again_only_with_the_same_settings() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (point("one"), point("two"));
        let mut results = Results::open(folder.path()).unwrap();
        results.measured(record(&one)).unwrap();
        results.left_out("two", "no room").unwrap();
        drop(results);
        let results = Results::open(folder.path()).unwrap();
        assert_eq!(results.of(&one), Some(&PointRecord { maker: maker(), ..record(&one) }));
        let mut other = one.clone();
        other.site.session.connections = 4;
        assert_eq!(results.of(&other), None);
        let slower = ExperimentPoint { seconds: 9.0, ..one.clone() };
        assert!(results.of(&slower).is_some(), "the estimate is no setting");
        let (records, left_out) = results.of_all(&[two, one, point("three")]);
        assert_eq!((records.len(), left_out.len()), (1, 1));
        assert_eq!(left_out[0].left_out, "no room");
    }

    #[test]
    fn results_are_not_written_into_a_folder_with_other_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("report.html"), "mine").unwrap();
        let error = Results::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("other files"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        // An interrupted run may have left an empty file.
        fs::write(folder.path().join("results.jsonl"), "").unwrap();
        Results::open(folder.path()).unwrap();
    }

    #[test]
    fn a_foreign_results_file_is_not_repaired() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let ours = serde_json::to_string(&ResultsFileLine::LeftOut(LeftOut {
            point: "one".to_owned(),
            left_out: "no room".to_owned(),
        }));
        let ours = ours.unwrap();
        assert!(ours.as_bytes().starts_with(HEAD), "{ours}");
        for (theirs, said) in [
            (b"years of work".to_vec(), "the end of"),
            (b"{\"run\":1}\n{\"run\":2}".to_vec(), "line 1"),
            (format!("{ours}\n{{\"run\":").into_bytes(), "the end of"),
            (b"\xff\xfe\n".to_vec(), "is not text"),
        ] {
            fs::write(&path, &theirs).unwrap();
            let error = Results::open(folder.path()).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("nothing was changed"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), theirs, "{said}");
        }
        // Lines of runs that were killed after a few bytes, and within a character.
        for half in [&b"{\"poi"[..], b"{\"point\":\"on\xc3"] {
            fs::write(&path, [ours.as_bytes(), b"\n", half].concat()).unwrap();
            assert_eq!(Results::open(folder.path()).unwrap().lines.len(), 1);
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{ours}\n"));
        }
    }

    #[test]
    fn a_run_without_results_leaves_no_files() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("out");
        let results = Results::open(&out).unwrap();
        assert!(out.join("results.jsonl").exists(), "locked by its name");
        drop(results);
        assert!(!out.exists());
        // Dropping results without lines also removes several created folders, even if only some of
        // them could be created.
        drop(Results::open(&place.path().join("a/b/c")).unwrap());
        let long = "x".repeat(300);
        Results::open(&place.path().join("a/b").join(long)).unwrap_err();
        assert!(!place.path().join("a").exists());
        // Files and folders that existed before the run are kept.
        fs::create_dir(&out).unwrap();
        drop(Results::open(&out).unwrap());
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
        fs::write(out.join("results.jsonl"), "").unwrap();
        drop(Results::open(&out).unwrap());
        assert!(out.join("results.jsonl").exists());
        // After a run has opened the file and before it has locked it, another run may remove the file. The run must
        // not write its results to the removed file.
        Results::open(&out).unwrap().left_out("one", "no room").unwrap();
        assert!(out.join("results.jsonl").exists());
    }

    #[test]
    fn a_run_stopped_before_its_first_result_can_continue() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("out");
        let results = Results::open(&out).unwrap();
        fs::write(out.join("report.html"), "nothing yet").unwrap();
        drop(results);
        Results::open(&out).unwrap().left_out("one", "no room").unwrap();
        assert_eq!(Results::open(&out).unwrap().lines.len(), 1);
    }

    #[test]
    fn the_last_record_of_a_point_decides() {
        let folder = tempfile::tempdir().unwrap();
        let one = point("one");
        let mut results = Results::open(folder.path()).unwrap();
        results.measured(record(&one)).unwrap();
        results.left_out("one", "it broke").unwrap();
        assert_eq!(results.of(&one), None, "it is tried again");
        let (records, left_out) = results.of_all(std::slice::from_ref(&one));
        assert_eq!((records.len(), &*left_out[0].left_out), (0, "it broke"));
        results.measured(record(&one)).unwrap();
        assert!(results.of(&one).is_some());
        assert_eq!(results.of_all(&[one]).1, []);
    }

    #[test]
    fn results_of_another_program_are_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let one = point("one");
        let by = |program: &str| {
            let maker = BTreeMap::from([("forebay".to_owned(), program.to_owned())]);
            Results::of_maker(folder.path(), maker).unwrap()
        };
        by("old").measured(record(&one)).unwrap();
        let mut results = by("new");
        assert!(results.of(&one).is_none() && results.is_of_others(&one));
        let (records, left_out) = results.of_all(std::slice::from_ref(&one));
        assert_eq!((records.len(), left_out.len()), (0, 1));
        assert!(left_out[0].left_out.contains("another program"), "{left_out:?}");
        results.measured(record(&one)).unwrap();
        drop(results);
        assert!(by("new").of(&one).is_some() && by("old").of(&one).is_some());
    }

    #[test]
    fn a_partial_last_line_is_removed_and_other_damage_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let mut results = Results::open(folder.path()).unwrap();
        results.measured(record(&point("one"))).unwrap();
        let error = Results::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("another run"), "{error}");
        drop(results);
        File::options().append(true).open(&path).unwrap().write_all(b"{\"point\":\"tw").unwrap();
        let mut results = Results::open(folder.path()).unwrap();
        results.measured(record(&point("two"))).unwrap();
        drop(results);
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
        assert!(Results::open(folder.path()).unwrap().of(&point("two")).is_some());
        File::options().append(true).open(&path).unwrap().write_all(b"nonsense\n").unwrap();
        let error = Results::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("line 3"), "{error}");
    }
}
