//! A PostgreSQL cluster for the workload alone. Its files are in the folder under test, and clients
//! reach it only through a Unix socket.

use std::{
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use postgres::{Client, Config, NoTls};
use rustix::process::Signal;

use super::{STATEMENT_LIMIT, Tpcc, failed};
use crate::{
    Error, Tool, owned_folder::OwnedFolder, run_program, service::Service, uncached_sums,
    unprivileged_user::UnprivilegedUser,
};

pub(super) const INITDB: Tool = Tool { program: "initdb", package: "postgresql" };
/// Time limit of initdb, of a start, and of a stop that writes all dirty data to remote storage
/// over a slow link.
const LIMIT: Duration = Duration::from_secs(1800);
/// Time between attempts to connect to a starting database. A start of the database takes about a second.
const LOOK: Duration = Duration::from_millis(20);
/// Number of connections besides those of the clients: one of the workload itself, and those that
/// PostgreSQL reserves for its superuser.
const SPARE: u32 = 6;

/// A PostgreSQL cluster, running or stopped. Dropping it ends the processes and removes the files.
pub(super) struct Cluster {
    // Fields are dropped in the order of their declaration. The processes must end before their
    // files are removed.
    server: Option<Service>,
    data: OwnedFolder,
    sockets: OwnedFolder,
    user: UnprivilegedUser,
    programs: PathBuf,
    settings: Vec<String>,
}

impl Cluster {
    /// Creates an empty PostgreSQL cluster with page checksums. If the caller is root, the cluster
    /// belongs to another user, because PostgreSQL does not run as root.
    pub(super) fn make(
        folder: &Path,
        scratch: &Path,
        tpcc: &Tpcc,
        space: u64,
    ) -> Result<Self, Error> {
        // Resolve symbolic links, because PostgreSQL's other programs are in the folder of the real file.
        let initdb = INITDB.find()?.canonicalize().map_err(Error::system("find initdb"))?;
        let programs = initdb.parent().expect("a program is in a folder").to_owned();
        let user = UnprivilegedUser::without_privilege(&["postgres", "nobody"])?;
        let data = OwnedFolder::make(folder, "forebay-lab-tpcc", space)?;
        let sockets = OwnedFolder::make(scratch, "pg", 0)?;
        user.take(data.path())?;
        user.take(sockets.path())?;
        let settings = vec![
            "listen_addresses=".to_owned(),
            format!("unix_socket_directories={}", sockets.path().display()),
            // Permit the socket only to its owner and root: every user who can connect to it is
            // superuser of the database.
            "unix_socket_permissions=0700".to_owned(),
            format!("max_connections={}", tpcc.clients + SPARE),
            format!("shared_buffers={}MB", tpcc.shared_buffers),
            format!("max_wal_size={}MB", tpcc.log),
            format!("min_wal_size={}MB", tpcc.log.min(80)),
            // These settings are PostgreSQL's defaults. They are written out because the results depend on them.
            "fsync=on".to_owned(),
            "synchronous_commit=on".to_owned(),
            "full_page_writes=on".to_owned(),
        ];
        let cluster = Self { server: None, data, sockets, user, programs, settings };
        let mut command = cluster.program("initdb");
        command.args(["--data-checksums", "--encoding=UTF8", "--locale=C", "--auth=trust"]);
        run_program::run(
            command.args(["--username=postgres", "--pgdata"]).arg(cluster.data()),
            LIMIT,
        )?;
        Ok(cluster)
    }

    /// Starts the PostgreSQL cluster, and waits until it accepts a connection.
    pub(super) fn start(&mut self) -> Result<(), Error> {
        let mut command = self.program("postgres");
        command.arg("-D").arg(self.data());
        command.args(self.settings.iter().flat_map(|setting| ["-c", setting]));
        let server = self.server.insert(Service::start(&mut command, Signal::QUIT)?);
        let begun = Instant::now();
        while let Err(error) = connect(self.sockets.path()) {
            server.check()?;
            if begun.elapsed() > LIMIT {
                return Err(failed(error));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Opens another connection to the PostgreSQL cluster.
    pub(super) fn connect(&self) -> Result<Client, Error> {
        connect(self.sockets.path()).map_err(failed)
    }

    /// Shuts the cluster down cleanly, and drops its files from the page cache, so that the next
    /// start reads them from the storage.
    pub(super) fn stop(&mut self) -> Result<(), Error> {
        if let Some(server) = self.server.take() {
            server.stop(Signal::INT, LIMIT)?;
        }
        uncached_sums::forget(&self.data())
    }

    /// Verifies the checksum of every page of the stopped cluster.
    pub(super) fn check_pages(&self) -> Result<(), Error> {
        let mut command = self.program("pg_checksums");
        let checked =
            run_program::run(command.args(["--check", "--pgdata"]).arg(self.data()), LIMIT);
        match checked {
            Ok(_) => Ok(()),
            Err(Error::Program { said, .. }) if said.contains("checksum verification failed") => {
                Err(Error::Wrong(said))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn remove(self) -> Result<(), Error> {
        let Self { server, data, sockets, .. } = self;
        drop(server);
        sockets.remove()?;
        data.remove()
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        // Remove environment variables by which the user selects other clusters.
        for (key, _) in
            std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with("PG"))
        {
            command.env_remove(key);
        }
        // Set the language C: PostgreSQL's messages are parsed and must not be translated.
        command.env("LC_ALL", "C").current_dir(self.data.path());
        self.user.run(&mut command);
        command
    }

    fn data(&self) -> PathBuf {
        // A subfolder, because initdb changes the mode of its folder. The folder `data` itself must
        // keep its mode.
        self.data.path().join("data")
    }
}

fn connect(sockets: &Path) -> Result<Client, postgres::Error> {
    let mut config = Config::new();
    config.host_path(sockets).user("postgres").dbname("postgres");
    config.options(&format!("-c statement_timeout={}", STATEMENT_LIMIT.as_millis()));
    config.connect_timeout(Duration::from_secs(30)).connect(NoTls)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{FileExt, PermissionsExt},
    };

    use super::*;
    use crate::test_folders::{TrialFolders, left};

    #[test]
    fn a_changed_page_is_an_error() {
        let Some(trial) = TrialFolders::with(&[INITDB]) else { return };
        let folder = trial.folder();
        let mut cluster = Cluster::make(folder, folder, &Tpcc::default(), 1).unwrap();
        cluster.start().unwrap();
        let socket = cluster.sockets.path().join(".s.PGSQL.5432").metadata().unwrap();
        assert_eq!(socket.permissions().mode() & 0o077, 0, "others come to the database");
        let mut client = cluster.connect().unwrap();
        client.batch_execute("CREATE TABLE t AS SELECT generate_series(1, 1000) AS n").unwrap();
        let file: String =
            client.query_one("SELECT pg_relation_filepath('t')", &[]).unwrap().get(0);
        drop(client);
        cluster.stop().unwrap();
        cluster.check_pages().unwrap();
        let file = fs::OpenOptions::new().write(true).open(cluster.data().join(file)).unwrap();
        file.write_all_at(b"wrong", 5000).unwrap();
        let error = cluster.check_pages().unwrap_err();
        assert!(matches!(error, Error::Wrong(_)), "{error}");
        cluster.start().unwrap();
        let mut client = cluster.connect().unwrap();
        let error = failed(client.query_one("SELECT sum(n) FROM t", &[]).unwrap_err());
        assert!(matches!(error, Error::Wrong(_)), "{error}");
        drop(client);
        // Dropping the running cluster must remove its files.
        drop(cluster);
        assert_eq!(left(folder), 0);
    }
}
