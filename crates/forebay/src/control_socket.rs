//! The control socket: one line of JSON as request, one as response, for the same user only. Ensures that a process is
//! the only owner of its socket, and sends requests to a running process.

use std::{
    fs::{DirBuilder, File, TryLockError},
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt},
        net::{UnixListener as StdListener, UnixStream as StdStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use config::Settings;
use control::{ControlRequest, ControlResponse, Failure};
use rustix::{
    fs::{Access, Mode},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    time::timeout,
};

/// Maximum length in bytes of a request on the control socket: one short line of JSON.
const REQUEST_BYTES: u64 = 4096;
/// Maximum length in bytes of a response that a client accepts: 1024 sessions and some hundred units fit.
const RESPONSE_BYTES: u64 = 16 << 20;
/// Time limit for receiving a request, and for sending a response.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before a request is repeated to a process that is probably ending.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Time limit for the work of a request: a reload may fill a new file or wait for a far volume.
const WORK: Duration = Duration::from_secs(600);
/// Maximum number of concurrent clients of the control socket: the people and monitors of one machine.
const CLIENTS: usize = 16;

/// Returns the path of the control socket that a process with these settings has.
pub fn path(settings: &Settings) -> Result<PathBuf, Failure> {
    settings.control.clone().map_or_else(default_path, Ok)
}

/// Returns the default path, in a folder that is private to the user of the process.
pub fn default_path() -> Result<PathBuf, Failure> {
    if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        return Ok(Path::new(&runtime).join("forebay/control.sock"));
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/run/forebay/control.sock".into());
    }
    Err(Failure::new("there is no folder for the control socket: XDG_RUNTIME_DIR is not set")
        .remedy("name one with `control = \"PATH\"` in the settings (or --control for status)"))
}

/// The control socket on which this process answers requests. Dropping it removes the socket.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    listener: Option<StdListener>,
    clients: Arc<Semaphore>,
    /// Locked as long as the process serves. A socket without this lock was left by a process that has ended.
    _owner: File,
}

impl ControlSocket {
    /// Creates the socket at `path`, and replaces one that a dead process has left there.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let cannot = |what: &str, error: &dyn std::fmt::Display| {
            Failure::new(format!("cannot {what} the control socket {}: {error}", path.display()))
                .remedy("name another path with `control` in the settings")
        };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|error| cannot("make the folder of", &error))?;
        }
        let owner = own(path)?;
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => {
                std::fs::remove_file(path).map_err(|error| cannot("replace", &error))?;
            }
            Ok(_) => return Err(cannot("make", &"something that is not a socket is there")),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(cannot("look at", &error)),
        }
        let listener = listen(path).map_err(|error| cannot("make", &error))?;
        let clients = Arc::new(Semaphore::new(CLIENTS));
        Ok(Self { path: path.to_owned(), listener: Some(listener), clients, _owner: owner })
    }

    /// Answers requests until the process ends. Call this once, within a runtime.
    pub async fn serve<F: Future<Output = ControlResponse> + Send + 'static>(
        &mut self,
        answer: impl Fn(ControlRequest) -> F + Send + Sync + 'static,
    ) -> io::Result<()> {
        let listener = self.listener.take().expect("serve is called once");
        let listener = UnixListener::from_std(listener)?;
        let answer = Arc::new(answer);
        let clients = Arc::clone(&self.clients);
        tokio::spawn(async move {
            loop {
                let place = Arc::clone(&clients).acquire_owned().await;
                let Ok((client, _)) = listener.accept().await else {
                    // `accept` has failed, most likely for lack of file descriptors. Wait until some are closed.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let answer = Arc::clone(&answer);
                tokio::spawn(async move {
                    let answered = converse(client, &*answer).await;
                    tracing::debug!(?answered, "control socket");
                    drop(place);
                });
            }
        });
        Ok(())
    }

    /// Waits until all requests are answered, at most `PATIENCE`.
    pub async fn finish(&self) {
        let all = self.clients.acquire_many(CLIENTS as u32 - 1);
        // The listener always holds one permit for the next client. Clients that do not read their response within this
        // time are not waited for.
        let _ = timeout(PATIENCE, all).await;
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "cannot remove the control socket");
        }
    }
}

/// Takes the lock file next to the socket, which contains the number of the process that owns the socket.
fn own(path: &Path) -> Result<File, Failure> {
    let lock = lock_of(path);
    let cannot = |error: io::Error| {
        Failure::new(format!("cannot use {}: {error}", lock.display()))
            .remedy("name another path with `control` in the settings")
    };
    take(&lock).map_err(cannot)?.map_err(|owner| is_owned(path, &owner))
}

fn lock_of(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lock");
    beside.into()
}

fn is_owned(path: &Path, owner: &str) -> Failure {
    Failure::new(format!(
        "forebay is already running with the control socket {} (process {owner})",
        path.display(),
    ))
    .remedy("stop it first, or give this one its own `control = \"PATH\"`")
}

/// Returns the number of the process that holds the lock. Another user may have written the file, so only a number is
/// passed on.
fn owner_of(lock: File) -> String {
    let mut owner = String::new();
    let read = lock.take(32).read_to_string(&mut owner);
    let number = read.ok().and_then(|_| owner.trim().parse::<u32>().ok());
    number.map_or_else(|| "unknown".to_owned(), |number| number.to_string())
}

/// Checks that a process could create its control socket at `path`, without creating it.
pub fn check(path: &Path) -> Result<(), Failure> {
    let refused = |what: String| {
        Err(Failure::new(format!("cannot make the control socket {}: {what}", path.display()))
            .remedy("name another path with `control` in the settings"))
    };
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return refused("something that is not a socket is there".into());
        }
        Err(error) if error.kind() != ErrorKind::NotFound => return refused(error.to_string()),
        _ => {}
    }
    let folders = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
    if let Some(above) = folders.into_iter().find(|above| above.exists()) {
        let access = Access::WRITE_OK | Access::EXEC_OK;
        if !above.is_dir() {
            return refused(format!("{} is not a folder", above.display()));
        }
        if let Err(error) = rustix::fs::access(above, access) {
            return refused(format!("{}: {error}", above.display()));
        }
    }
    match volume::open_own(&lock_of(path), true, false) {
        Ok(lock) if matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)) => {
            Err(is_owned(path, &owner_of(lock)))
        }
        Err(error) if error.kind() != ErrorKind::NotFound => refused(error.to_string()),
        _ => Ok(()),
    }
}

/// Takes a lock that is held as long as the file is open, and writes this process's number into the file. If another
/// process holds the lock, returns its number as the inner error.
pub fn take(lock: &Path) -> io::Result<Result<File, String>> {
    let mut file = volume::open_own(lock, true, true)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Err(owner_of(file))),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())?;
    Ok(Ok(file))
}

/// Creates the listening socket. Its mode is set before the path exists, so that other users can never connect.
fn listen(path: &Path) -> io::Result<StdListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, CLIENTS as i32)?;
    Ok(socket.into())
}

async fn converse<F: Future<Output = ControlResponse>>(
    client: UnixStream,
    answer: &impl Fn(ControlRequest) -> F,
) -> io::Result<()> {
    let (read, mut write) = client.into_split();
    let mut line = Vec::new();
    let mut read = tokio::io::BufReader::new(read).take(REQUEST_BYTES);
    timeout(PATIENCE, read.read_until(b'\n', &mut line)).await??;
    let response = match serde_json::from_slice(&line) {
        // Complete the request even if the client has ended, so that a change is never left incomplete.
        Ok(request) => answer(request).await,
        Err(error) => ControlResponse::Error(format!("not a request: {error}")),
    };
    let mut line = serde_json::to_vec(&response)?;
    line.push(b'\n');
    timeout(PATIENCE, write.write_all(&line)).await?
}

/// Sends a request to the process that listens on `path`.
pub fn ask(path: &Path, request: ControlRequest) -> Result<ControlResponse, Failure> {
    ask_or(path, request, || no_process(path))
}

/// Returns the failure that no process answers on `path`. If that is the default path, a process with a path of its own
/// may be running.
fn no_process(path: &Path) -> Failure {
    if default_path().is_ok_and(|default| default == path) {
        return Failure::new(format!(
            "no process answers on the default control socket {}",
            path.display()
        ))
        .remedy(
            "if forebay runs with another socket, add `--config FILE` with its settings file, or `--control PATH`; \
             otherwise start it with `forebay serve --config FILE`",
        );
    }
    Failure::new(format!("no process answers on the control socket {}", path.display())).remedy(
        "start it with `forebay serve --config FILE`, or name another socket with `--control PATH` or another \
         settings file with `--config FILE`",
    )
}

/// As [`ask`], but `no_listener` makes the failure if no process listens on `path`.
pub fn ask_or(
    path: &Path,
    request: ControlRequest,
    no_listener: impl FnOnce() -> Failure,
) -> Result<ControlResponse, Failure> {
    let stream = StdStream::connect(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => no_listener(),
        _ => Failure::new(format!("cannot connect to {}: {error}", path.display()))
            .remedy("run this command as the user of the serving process, or as root"),
    })?;
    exchange(stream, request).map_err(|error| {
        Failure::new(format!("no answer on {}: {error}", path.display())).remedy(
            "repeat the command; a process that never answers has hung: see its events, \
             and restart it",
        )
    })
}

/// As [`ask`], but returns `None` if no process listens. If the process ends the connection without an answer, it is
/// probably ending, so the request is repeated, at most for `PATIENCE`: `request` must change nothing.
pub fn ask_if_running(
    path: &Path,
    request: &ControlRequest,
) -> Result<Option<ControlResponse>, Failure> {
    let begun = Instant::now();
    loop {
        let error = match StdStream::connect(path).and_then(|it| exchange(it, request.clone())) {
            Ok(response) => return Ok(Some(response)),
            Err(error) => error,
        };
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => return Ok(None),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof
                if begun.elapsed() < PATIENCE =>
            {
                std::thread::sleep(AGAIN_AFTER);
            }
            _ => {
                return Err(Failure::new(format!("no answer on {}: {error}", path.display())));
            }
        }
    }
}

fn exchange(mut stream: StdStream, request: ControlRequest) -> io::Result<ControlResponse> {
    let is_quick = matches!(
        request,
        ControlRequest::Status
            | ControlRequest::Compare { .. }
            | ControlRequest::Cache { .. }
            | ControlRequest::Moving { .. }
            | ControlRequest::Moves
            | ControlRequest::Attachment
    );
    stream.set_read_timeout(Some(if is_quick { PATIENCE } else { WORK }))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(&request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    BufReader::new(stream).take(RESPONSE_BYTES).read_until(b'\n', &mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}
