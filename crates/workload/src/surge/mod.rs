//! Runs a web server under the load of Surge's users. nginx serves the files of a folder, and
//! writes its log to that folder, too.

mod distribution;
mod site;
mod client;

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use sim::Rng;

use self::{
    client::SurgeClient,
    distribution::{ACTIVE_OFF, INACTIVE_OFF, PAGE},
    site::SurgeSite,
};
use crate::{
    Error, Tool, Workload, WorkloadResult, WorkloadRun,
    owned_folder::OwnedFolder,
    service::Service,
    timed_run::{RunWatch, within},
    uncached_sums,
    unprivileged_user::UnprivilegedUser,
};

const TOOL: Tool = Tool { program: "nginx", package: "nginx-light" };
/// The name of nginx's settings file.
const SETTINGS: &str = "nginx.conf";
/// Time limit for nginx to start, and to exit after all connections are closed.
const LIMIT: Duration = Duration::from_secs(300);
/// Interval between attempts to connect to nginx while it is starting.
const LOOK: Duration = Duration::from_millis(10);
/// Bytes of log per second for which there must be space: the length of a log line in bytes (measured, and rounded up),
/// times the largest number of lines per second.
const LOGGED: u64 = 100 * 20_000;

/// Settings of the workload Surge.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, clap::Args)]
#[serde(deny_unknown_fields, default)]
pub struct Surge {
    /// Files of the site, some 50 KB each. The paper has 20000
    #[arg(long, default_value_t = 2000)]
    pub files: u32,
    /// Number of concurrent users
    #[arg(long, default_value_t = 100)]
    pub users: u32,
    /// Length of the measurement in seconds
    #[arg(long, default_value_t = 60)]
    pub seconds: u32,
    /// Length of the warm-up in seconds, with the same load
    #[arg(long, default_value_t = 5)]
    pub warm_up: u32,
    /// Speed of the users' pauses, relative to Surge's: 2 halves the pauses
    #[arg(long, default_value_t = 1.0)]
    pub pace: f64,
}

impl Default for Surge {
    fn default() -> Self {
        Self { files: 2000, users: 100, seconds: 60, warm_up: 5, pace: 1.0 }
    }
}

impl Workload for Surge {
    fn needs(&self) -> Vec<Tool> {
        vec![TOOL]
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = Error::wrong_setting;
        match self {
            Self { files: 0 | 1_000_001.., .. } => wrong("a site has 1 to 1000000 files"),
            Self { users: 0 | 1001.., .. } => wrong("a site has 1 to 1000 users here"),
            Self { seconds: 0 | 86_401.., .. } | Self { warm_up: 86_401.., .. } => {
                wrong("a measurement takes a second to a day, and its warm-up at most a day")
            }
            Self { pace, .. } if !(0.001..=1e6).contains(pace) => {
                wrong("the pace is 0.001 to 1000000")
            }
            _ => Ok(()),
        }
    }

    fn space(&self) -> u64 {
        // Demand space for twice the expected size of the files, because the sizes depend on the
        // seed.
        let files = 2 * site::MEAN * u64::from(self.files) + (8 << 20);
        files + LOGGED * (u64::from(self.seconds) + u64::from(self.warm_up))
    }

    fn run(&self, run: &WorkloadRun<'_>) -> Result<WorkloadResult, Error> {
        let folder = run.folder("surge")?;
        self.check()?;
        let user = UnprivilegedUser::without_privilege(&["www-data", "nobody"])?;
        let own = OwnedFolder::make(folder, "forebay-lab-surge", self.space())?;
        let local = OwnedFolder::make(run.scratch, "nginx", 0)?;
        for name in ["files", "log"] {
            fs::create_dir(own.path().join(name)).map_err(Error::system("make the site"))?;
        }
        let site = SurgeSite::new(self.files, run.seed);
        site.write(&own.path().join("files"), &|done| (run.progress)(0.3 * done))?;
        // Write the settings before the folder is given to the server's user: that user could
        // otherwise replace the file.
        self.write_settings(own.path(), local.path())?;
        user.take(&own.path().join("log"))?;
        user.take(local.path())?;
        // Drop the files from the page cache, so that nginx reads them from the storage.
        uncached_sums::forget(own.path())?;
        let (mut server, clients) = self.start(&user, local.path())?;
        let sequence = site.sequence();
        let load = SurgeLoad { site: &site, sequence: &sequence, next: AtomicUsize::new(0) };
        let mut rng = Rng::new(run.seed.rotate_left(13));
        let load = &load;
        let workers = clients.into_iter().map(|client| {
            let own = SurgeUser { client, rng: rng.fork(), pace: self.pace };
            move |watch: &RunWatch| own.work(watch, load)
        });
        let watch = RunWatch::start(self.warm_up, self.seconds);
        let found = watch.run(workers.collect(), &|done| (run.progress)(0.3 + 0.7 * done))?;
        server.check()?;
        server.stop(Signal::QUIT, LIMIT)?;
        let mut all = SurgeMeasurement::default();
        found.into_iter().for_each(|one| all.add(one));
        let log = own.path().join("log/access.log");
        uncached_sums::forget(own.path())?;
        compare(&log, all.answered)?;
        let logged = log.metadata().map_err(Error::system("read the size of the log"))?.len();
        own.remove()?;
        local.remove()?;
        Ok(self.outcome(&all, &site, logged))
    }
}

/// The state that all users share: the files, the sequence of requests, and the position of the next request in the
/// sequence.
struct SurgeLoad<'a> {
    site: &'a SurgeSite,
    /// The files to request, in order. After the end, users begin again at the start.
    sequence: &'a [u32],
    next: AtomicUsize,
}

impl SurgeLoad<'_> {
    fn next(&self) -> u32 {
        self.sequence[self.next.fetch_add(1, Ordering::Relaxed) % self.sequence.len()]
    }
}

/// The measured results of one simulated user.
#[derive(Default)]
struct SurgeMeasurement {
    /// Number of responses, also outside of the measured time.
    answered: u64,
    /// Response time in milliseconds of each measured response.
    times: Vec<f64>,
    /// Sum of the sizes of all measured responses, in bytes.
    bytes: u64,
}

impl SurgeMeasurement {
    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.times.extend(other.times);
        self.bytes += other.bytes;
    }
}

/// One user: requests the files of a page one after the other, then pauses as if reading.
struct SurgeUser {
    client: SurgeClient,
    rng: Rng,
    pace: f64,
}

impl SurgeUser {
    fn work(mut self, watch: &RunWatch, load: &SurgeLoad<'_>) -> Result<SurgeMeasurement, Error> {
        let mut found = SurgeMeasurement::default();
        // Let users start at different times: each waits for a random part of a reading pause
        // first.
        let first = self.rng.below(1000) as f64 / 1000.0;
        watch.pause(first * INACTIVE_OFF.draw(&mut self.rng) / self.pace);
        while !watch.is_over() {
            // Limit the number of files of a page: a user with a very long page would never pause.
            let files = PAGE.draw(&mut self.rng).min(1000.0) as u32;
            for number in 0..files {
                if number > 0 {
                    watch.pause(ACTIVE_OFF.draw(&mut self.rng) / self.pace);
                }
                if watch.is_over() {
                    break;
                }
                let file = load.next();
                let took = self.client.get(load.site, file)?;
                found.answered += 1;
                if watch.is_measured(Instant::now()) {
                    found.times.push(took.as_secs_f64() * 1e3);
                    found.bytes += load.site.size(file);
                }
            }
            watch.pause(INACTIVE_OFF.draw(&mut self.rng) / self.pace);
        }
        Ok(found)
    }
}

impl Surge {
    /// Starts the server and connects all users.
    fn start(
        &self,
        user: &UnprivilegedUser,
        local: &Path,
    ) -> Result<(Service, Vec<SurgeClient>), Error> {
        let mut command = Command::new(TOOL.find()?);
        command.args(["-e", "stderr", "-c"]).arg(local.join(SETTINGS)).current_dir(local);
        let mut server = Service::start(user.run(&mut command), Signal::TERM)?;
        let (socket, begun) = (local.join("socket"), Instant::now());
        let mut connect = || loop {
            match SurgeClient::connect(&socket) {
                Ok(client) => return Ok(client),
                Err(error) if begun.elapsed() > LIMIT => {
                    return Err(Error::system("connect to nginx")(error));
                }
                Err(_) => server.check()?,
            }
            thread::sleep(LOOK);
        };
        let clients = (0..self.users).map(|_| connect()).collect::<Result<_, _>>()?;
        Ok((server, clients))
    }

    fn write_settings(&self, folder: &Path, local: &Path) -> Result<(), Error> {
        let file = File::create_new(local.join(SETTINGS));
        let written = file.and_then(|mut it| it.write_all(self.settings(folder, local).as_bytes()));
        written.map_err(Error::system("write nginx's settings"))
    }

    /// Returns the settings of nginx. The log is in the folder, in nginx's default format; all
    /// other files are in `local`.
    fn settings(&self, folder: &Path, local: &Path) -> String {
        let (folder, local) = (folder.display(), local.display());
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path \"{local}/{name}\";\n"))
            .concat();
        // The limit applies to each worker of nginx. A worker needs a connection for each user, and some for the files
        // that it serves.
        let connections = self.users + 64;
        format!(
            "daemon off;\nworker_processes 2;\npid \"{local}/pid\";\n\
             worker_rlimit_nofile {files};\nevents {{ worker_connections {connections}; }}\n\
             http {{\n{temporary}access_log \"{folder}/log/access.log\" combined;\n\
             default_type application/octet-stream;\nsendfile on;\n\
             keepalive_timeout 1d;\nkeepalive_requests 1000000000;\n\
             server {{ listen \"unix:{local}/socket\"; root \"{folder}/files\"; }}\n}}\n",
            files = 2 * connections
        )
    }

    fn outcome(&self, all: &SurgeMeasurement, site: &SurgeSite, logged: u64) -> WorkloadResult {
        let mut times = all.times.clone();
        times.sort_by(f64::total_cmp);
        let seconds = f64::from(self.seconds);
        let mut outcome = WorkloadResult {
            verified: format!(
                "every byte of {} answers, and the log, read from storage, with a line for each",
                all.answered
            ),
            ..WorkloadResult::default()
        }
        .figure("requests", "1/s", times.len() as f64 / seconds)
        .figure("answers", "MB/s", all.bytes as f64 / seconds / 1e6)
        .figure("site", "bytes", site.total() as f64)
        .figure("log", "bytes", logged as f64);
        for (name, share) in [("answer, half within", 0.5), ("answer, 90 % within", 0.9)] {
            if let Some(time) = within(&times, share) {
                outcome = outcome.figure(name, "ms", time);
            }
        }
        outcome
    }
}

/// Checks that nginx's log has a line for each response.
fn compare(log: &Path, answered: u64) -> Result<(), Error> {
    let failed = || Error::system(format!("read {}", log.display()));
    let mut logged = 0;
    for line in BufReader::new(File::open(log).map_err(failed())?).split(b'\n') {
        let line = line.map_err(failed())?;
        logged += u64::from(line.windows(6).any(|part| part == b"\" 200 "));
    }
    if logged != answered {
        let what = format!("{answered} answers were received, and the log has {logged}");
        return Err(Error::Wrong(what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folders::{TrialFolders, left};

    #[test]
    fn surge_runs_compares_its_files_and_leaves_nothing() {
        let Some(trial) = TrialFolders::with(&[TOOL]) else { return };
        let task = Surge { files: 40, users: 3, seconds: 1, warm_up: 0, pace: 1000.0 };
        let outcome = trial.run(&task).unwrap();
        assert!(outcome.get("requests").unwrap() > 0.0, "{outcome:?}");
        assert_eq!(left(trial.scratch()), 0);
    }

    #[test]
    fn a_missing_line_in_the_log_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let line =
            "unix: - - [22/Nov/2026:18:00:00 +0000] \"GET /0/1 HTTP/1.1\" 200 512 \"-\" \"-\"\n";
        fs::write(&log, line.repeat(3)).unwrap();
        compare(&log, 3).unwrap();
        let error = compare(&log, 4).unwrap_err().to_string();
        assert!(error.contains("4 answers were received, and the log has 3"), "{error}");
    }
}
