//! `forebay attach` and `detach`: a volume as a block device of this host.
//!
//! The volume's stack runs in this process, as in a gateway. On it lies a FUSE file that is mounted
//! nowhere, on that a loop device (crate `attach`, decision 0014).

mod host;
mod source;
mod file_system;
mod place;
mod device;
mod background;
mod detach;

use std::{io::Write as _, os::unix::net::UnixDatagram, time::Duration};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot},
};

use crate::{
    attached::Attached,
    cli::Attach,
    control::{Request, Response},
    failure::Failure,
    output::print_line,
};
pub use detach::run as detach;
use device::Device;
use place::Place;
use source::Source;

/// Attaches a volume and serves it until it is detached.
pub fn run(args: Attach) -> Result<(), Failure> {
    host::check(&args)?;
    if args.background && !args.in_background {
        return background::start();
    }
    host::serve_writeback();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::new)?;
    let result = runtime.block_on(attach(&args));
    // What still waits for the device ends with the process.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

/// Somebody wants it detached.
struct Asked {
    force: bool,
    answer: oneshot::Sender<Result<Attached, Failure>>,
}

async fn attach(args: &Attach) -> Result<(), Failure> {
    let mut signals = Signals::new(args.in_background)?;
    let source = Source::of(args)?;
    let mut place = Place::take(&source)?;
    let opened = tokio::select! {
        opened = source.open() => opened?,
        () = signals.next() => return Ok(()),
    };
    let result = async {
        let name = place.take_volume(&source, opened.identity.as_deref()).await?;
        let mut device = Device::open(args, &source, name, opened.top.clone()).await?;
        let (ask, mut asked) = mpsc::channel(1);
        let what = device.attached().clone();
        let answered = place.serve(move |request| answer(request, what.clone(), ask.clone())).await;
        let announced = answered.and_then(|()| announce(args, device.attached()));
        if let Err(failure) = announced {
            device.give_up().await;
            return Err(failure);
        }
        host::end_last();
        serve(&mut device, &mut signals, &mut asked).await
    };
    let result = result.await;
    let stopped = opened.stop().await;
    let (result, asker) = match result {
        Ok(asker) => (stopped, asker),
        Err(failure) => (Err(failure), None),
    };
    if let Some((asker, attached)) = asker {
        // It may have gone.
        let _ = asker.send(result.clone().map(|()| attached));
    }
    place.finish().await;
    result
}

/// Who waits to hear that it is detached, and of what.
type Asker = Option<(oneshot::Sender<Result<Attached, Failure>>, Attached)>;

/// Serves until it is detached. What a signal asks for is done as soon as nobody uses the device,
/// at the second signal at once.
async fn serve(
    device: &mut Device,
    signals: &mut Signals,
    asked: &mut mpsc::Receiver<Asked>,
) -> Result<Asker, Failure> {
    let mut is_ending = false;
    loop {
        tokio::select! {
            () = device.ended() => {
                device.let_go().await;
                return Err(Failure::new("the kernel has ended the FUSE connection: who uses the device gets I/O errors")
                    .remedy("unmount what is on it, and attach it again"));
            }
            () = signals.next() => {
                if is_ending {
                    device.detach(true).await?;
                    return Ok(None);
                }
                end(&mut is_ending);
            }
            () = tokio::time::sleep(if is_ending { LOOK_AGAIN } else { FOLLOW }) => {}
            Some(Asked { force, answer }) = asked.recv() => {
                match detach_patiently(device, force, signals, &mut is_ending).await {
                    Ok(()) => return Ok(Some((answer, device.attached().clone()))),
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
            match detach_patiently(device, false, signals, &mut is_ending).await {
                Ok(()) => return Ok(None),
                Err(failure) if device.is_gone() => return Err(failure),
                Err(failure) => device.say_once(&failure),
            }
        } else {
            device.follow().await;
        }
    }
}

/// Detaches the device, which may take its time; at the second signal at once.
async fn detach_patiently(
    device: &mut Device,
    force: bool,
    signals: &mut Signals,
    is_ending: &mut bool,
) -> Result<(), Failure> {
    match until_second(device.detach(force), async || signals.next().await, is_ending).await {
        Some(detached) => detached,
        None => device.detach(true).await,
    }
}

/// What comes of `work`, unless there is a second signal before: the first says only that we are to
/// end, and `work` goes on.
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

/// The first signal.
fn end(is_ending: &mut bool) {
    *is_ending = true;
    notify("STOPPING=1");
    tracing::info!("ending when nobody uses the device; a second signal takes it away");
}

/// How often the volume is asked whether it has grown: sooner than who has made it larger grows the
/// file system.
const FOLLOW: Duration = Duration::from_secs(2);

/// How often a device that is in use is looked at again, after a signal.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

async fn answer(request: Request, attached: Attached, ask: mpsc::Sender<Asked>) -> Response {
    let force = match request {
        Request::Attachment => return Response::Attachment(attached),
        Request::Detach { force } => force,
        _ => {
            return Response::Failure(Failure::new(
                "this process has attached a volume, and serves nothing else",
            ));
        }
    };
    let (answer, answered) = oneshot::channel();
    if ask.send(Asked { force, answer }).await.is_err() {
        return Response::Attachment(attached);
    }
    match answered.await {
        Ok(Ok(attached)) => Response::Attachment(attached),
        Ok(Err(failure)) => Response::Failure(failure),
        Err(_) => Response::Failure(Failure::new("the process has ended before it was done")),
    }
}

/// Says that the device is there: to whoever reads stdout, and to systemd.
fn announce(args: &Attach, attached: &Attached) -> Result<(), Failure> {
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

/// Tells a service manager how we are (sd_notify(3)).
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
        tracing::warn!(%error, "the service manager does not hear from us");
    }
}

/// SIGTERM, SIGINT, and SIGHUP: who closes the terminal does not mean that what was written is thrown away.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// `None`: it is ignored, as nohup(1) has it.
    hang_up: Option<Signal>,
    /// In the background a SIGHUP means nothing.
    in_background: bool,
}

impl Signals {
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

/// Who started us wants us to go on without a terminal.
fn is_hang_up_ignored() -> bool {
    // SAFETY: a structure of numbers, which the call fills.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is set; what is there is written to a structure that outlives the call.
    let asked = unsafe { libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut now) };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many signals come while something is worked at, which ends when they have been taken.
    async fn with_signals(number: usize, mut is_ending: bool) -> (Option<&'static str>, bool) {
        let (send, mut signals) = mpsc::channel(8);
        let work = async move {
            for _ in 0..number {
                send.send(()).await.unwrap();
                // The one before is taken first.
                send.reserve_many(8).await.unwrap();
            }
            "detached"
        };
        let next = async || signals.recv().await.unwrap();
        (until_second(work, next, &mut is_ending).await, is_ending)
    }

    #[tokio::test]
    async fn the_first_signal_lets_a_detach_go_on() {
        assert_eq!(with_signals(0, false).await, (Some("detached"), false));
        assert_eq!(with_signals(1, false).await, (Some("detached"), true));
        assert_eq!(with_signals(2, false).await, (None, true));
        assert_eq!(with_signals(1, true).await, (None, true));
    }
}
