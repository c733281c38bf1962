//! `forebay attach` and `forebay detach`: a volume as a block device of this host.
//!
//! The volume's stack runs in this process, as in a gateway. Above it are a FUSE file that is mounted nowhere, and a
//! loop device on this file (crate `attach`, decision 0014).

mod host;
mod source;
mod file_system;
mod attachment_lock;
mod control_answers;
mod device;
mod background;
mod detach;

use std::{io::Write as _, os::unix::net::UnixDatagram, sync::Arc, time::Duration};

use control::{AttachedVolumeStatus, CacheControlStatus, Failure};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot},
};

use crate::{cli::Attach, control_socket::ControlSocket, output::print_line};
use attachment_lock::AttachmentLock;
use control_answers::{AttachmentResponder, DetachAnswer, DetachRequest, Manner};
pub use detach::run as detach;
use device::AttachedDevice;
use source::AttachmentSource;

pub fn run(args: Attach) -> Result<(), Failure> {
    host::check(&args)?;
    if args.background && !args.in_background {
        return background::start();
    }
    host::serve_writeback();
    // Use one thread for the runtime. With two, each request wakes both in turn, and a short write takes a fifth
    // longer.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().map_err(Failure::new)?;
    let result = runtime.block_on(attach(&args));
    // Do not wait for threads that hang in a call on the device: they end with the process.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

async fn attach(args: &Attach) -> Result<(), Failure> {
    let mut signals = AttachStopSignals::new(args.in_background)?;
    let source = AttachmentSource::of(args)?;
    let mut place = AttachmentLock::take(&source)?;
    let (ask, mut asked) = mpsc::channel(1);
    let answers = Arc::new(AttachmentResponder::new(&source, ask));
    let control = open_control(&source, &place, &answers).await;
    let opened = tokio::select! {
        opened = source.open() => Arc::new(opened?),
        () = signals.next() => return Ok(()),
    };
    answers.set_opened(&opened);
    let result = async {
        let name = place.take_volume(&source, opened.identity.as_deref()).await?;
        let mut device = AttachedDevice::open(args, &source, name, Arc::clone(&opened)).await?;
        answers.set_attached(device.attached());
        let told = Arc::clone(&answers);
        let answered = place.serve(move |request| Arc::clone(&told).answer(request)).await;
        let announced = answered.and_then(|()| announce(args, device.attached()));
        if let Err(failure) = announced {
            device.give_up().await;
            return Err(failure);
        }
        host::end_last();
        serve(&mut device, &answers, &mut signals, &mut asked).await
    };
    let result = result.await;
    answers.set_stopping();
    let stopped = opened.stop().await;
    let (result, asker) = match result {
        Ok(asker) => (stopped, asker),
        Err(failure) => (Err(failure), None),
    };
    if let Some((asker, attached)) = asker {
        let detached = || DetachAnswer::Detached(Box::new(answers.detached(attached)));
        // The client that has asked for the detach may have ended meanwhile.
        let _ = asker.send(result.clone().map(|()| detached()));
    }
    place.finish().await;
    if let Some(control) = &control {
        control.finish().await;
    }
    result
}

/// Answers on the control socket of the settings, too. The device is more important than this socket: if another
/// process has the socket, or it cannot be created, the volume is attached nevertheless.
async fn open_control(
    source: &AttachmentSource,
    place: &AttachmentLock,
    answers: &Arc<AttachmentResponder>,
) -> Option<ControlSocket> {
    let path = source.control()?;
    let answers = Arc::clone(answers);
    let opened = async {
        let mut control = ControlSocket::open(path)?;
        let served = control.serve(move |request| Arc::clone(&answers).answer(request)).await;
        served.map_err(Failure::new)?;
        Ok::<_, Failure>(control)
    };
    match opened.await {
        Ok(control) => Some(control),
        Err(failure) => {
            let remedy = format!(
                "use `forebay status` and `forebay gateway` with --control {} once the device exists",
                place.socket().display()
            );
            tracing::warn!(
                reason = failure.message,
                remedy,
                "the control socket of the settings is not used"
            );
            None
        }
    }
}

/// The client to answer once the device is detached, and the state of that device.
type Asker = Option<(oneshot::Sender<Result<DetachAnswer, Failure>>, AttachedVolumeStatus)>;

/// Serves the device until it is detached. The first signal detaches it as soon as it is not in use; the second one
/// detaches it at once.
async fn serve(
    device: &mut AttachedDevice,
    answers: &AttachmentResponder,
    signals: &mut AttachStopSignals,
    asked: &mut mpsc::Receiver<DetachRequest>,
) -> Result<Asker, Failure> {
    let mut is_ending = false;
    loop {
        tokio::select! {
            () = device.ended() => {
                device.let_go().await;
                return Err(Failure::new("the kernel has ended the FUSE connection: users of the device get I/O errors")
                    .remedy("unmount what is on it, and attach it again"));
            }
            () = signals.next() => {
                if is_ending {
                    device.detach(Manner::Force).await?;
                    return Ok(None);
                }
                end(&mut is_ending);
            }
            () = tokio::time::sleep(if is_ending { LOOK_AGAIN } else { FOLLOW }) => {}
            Some(DetachRequest { manner, answer }) = asked.recv() => {
                match detach_patiently(device, manner, signals, &mut is_ending).await {
                    Ok(None) => return Ok(Some((answer, device.attached().clone()))),
                    Ok(Some(standing)) => {
                        let _ = answer.send(Ok(DetachAnswer::Draining(standing)));
                    }
                    Err(failure) => {
                        let _ = answer.send(Err(failure.clone()));
                        if device.is_gone() {
                            return Err(failure);
                        }
                    }
                }
                continue;
            }
        }
        if is_ending {
            match detach_patiently(device, Manner::Usual, signals, &mut is_ending).await {
                Ok(_) => return Ok(None),
                Err(failure) if device.is_gone() => return Err(failure),
                Err(failure) => device.say_once(&failure),
            }
        } else {
            device.follow().await;
            answers.set_attached(device.attached());
        }
    }
}

/// Detaches the device, which may take long; a second signal detaches it at once. Returns the state of the cache if it
/// has to destage more data first.
async fn detach_patiently(
    device: &mut AttachedDevice,
    manner: Manner,
    signals: &mut AttachStopSignals,
    is_ending: &mut bool,
) -> Result<Option<CacheControlStatus>, Failure> {
    match until_second(device.detach(manner), async || signals.next().await, is_ending).await {
        Some(detached) => detached,
        None => device.detach(Manner::Force).await,
    }
}

/// Returns the result of `work`, or `None` at a second signal. A first signal only marks the process as ending, and
/// `work` continues.
async fn until_second<T>(
    work: impl Future<Output = T>,
    mut signal: impl AsyncFnMut(),
    is_ending: &mut bool,
) -> Option<T> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Some(done),
            () = signal() => {
                if *is_ending {
                    return None;
                }
                end(is_ending);
            }
        }
    }
}

/// Records that the process is ending, and reports that to systemd and the user.
fn end(is_ending: &mut bool) {
    *is_ending = true;
    notify("STOPPING=1");
    tracing::info!(
        "ending once the device is no longer in use; a second signal detaches it at once"
    );
}

/// Interval between two checks of the volume's size. It must be shorter than an administrator takes to grow first the
/// volume and then its file system.
const FOLLOW: Duration = Duration::from_secs(2);

/// Interval between two attempts to detach a device in use after a signal.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Reports on stdout and to systemd that the device exists.
fn announce(args: &Attach, attached: &AttachedVolumeStatus) -> Result<(), Failure> {
    let device = attached.device.display();
    if args.json {
        print_line(serde_json::to_string(attached).map_err(Failure::new)?)?;
    } else if args.in_background {
        print_line(&device)?;
    } else {
        print_line(format_args!("ready {device}"))?;
    }
    let _ = std::io::stdout().flush();
    tracing::info!(%device, volume = attached.volume, "attached");
    notify("READY=1");
    if args.in_background {
        background::leave()?;
    }
    Ok(())
}

/// Sends `state` to the service manager (sd_notify(3)).
fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let sent = UnixDatagram::unbound().and_then(|socket| {
        use std::os::{linux::net::SocketAddrExt, unix::ffi::OsStrExt, unix::net::SocketAddr};
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = sent {
        tracing::warn!(
            %error,
            remedy = "nothing has to be done unless systemd ends the process: then set \
             NotifyAccess=main in its unit",
            "cannot notify the service manager"
        );
    }
}

/// The signals that end the process: SIGTERM, SIGINT and SIGHUP. SIGHUP detaches orderly, because closing the terminal
/// must not lose data.
struct AttachStopSignals {
    terminate: Signal,
    interrupt: Signal,
    /// Receives SIGHUP; `None` if the process ignores SIGHUP, as with nohup(1).
    hang_up: Option<Signal>,
    /// True in the background process, which ignores SIGHUP.
    in_background: bool,
}

impl AttachStopSignals {
    fn new(in_background: bool) -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(Failure::new);
        let hang_up = (!is_hang_up_ignored()).then(|| listen(SignalKind::hangup())).transpose()?;
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up,
            in_background,
        })
    }

    async fn next(&mut self) {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) if !self.in_background => signal.recv().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = hang_up => {}
        }
    }
}

/// Returns true if SIGHUP was ignored when the process started, as with nohup(1).
fn is_hang_up_ignored() -> bool {
    // SAFETY: the structure consists of numbers, which the call fills.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call sets nothing and writes the present action to a structure that outlives it.
    let asked = unsafe { libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut now) };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs work that ends after `number` signals, sends these signals, and returns the result.
    async fn with_signals(number: usize, mut is_ending: bool) -> (Option<&'static str>, bool) {
        let (send, mut signals) = mpsc::channel(8);
        let work = async move {
            for _ in 0..number {
                send.send(()).await.unwrap();
                // Wait until the previous signal has been handled.
                send.reserve_many(8).await.unwrap();
            }
            "detached"
        };
        let next = async || signals.recv().await.unwrap();
        (until_second(work, next, &mut is_ending).await, is_ending)
    }

    #[tokio::test]
    async fn a_detach_continues_after_the_first_signal_and_stops_at_the_second() {
        assert_eq!(with_signals(0, false).await, (Some("detached"), false));
        assert_eq!(with_signals(1, false).await, (Some("detached"), true));
        assert_eq!(with_signals(2, false).await, (None, true));
        assert_eq!(with_signals(1, true).await, (None, true));
    }
}
