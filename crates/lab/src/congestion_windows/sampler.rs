//! A thread that samples congestion windows. It enters the network namespace of the sockets and queries the kernel for
//! each socket.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt,
        sockopt::Timeout,
    },
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use super::{
    sock_diag::{self, SockDiagMessage, SocketId, TcpInfo},
    summary::{Looks, TcpSegmentCounters, Windows},
};

/// Selects the sockets whose windows are sampled. Each connection has a socket at either end; the one that sends the
/// data is sampled.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SamplerScope {
    /// The file of the sockets' network namespace. `None`: the namespace of the calling thread.
    pub namespace: Option<PathBuf>,
    pub port: u16,
    /// True to sample the target's end, which sends the data of reads. False for the initiator's
    /// end.
    pub at_target: bool,
}

/// Samples windows in a thread until [`Sampler::stop`] is called.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Windows>,
}

/// The interval between samples, from the paper: "approximately every 10ms".
const EVERY: Duration = Duration::from_millis(10);
/// Time between two searches for new connections. Searches are rarer than samples ([`EVERY`]), since for each search
/// the kernel scans its whole table of sockets.
const LIST_EVERY: Duration = Duration::from_millis(200);
/// Maximum number of connections whose windows are sampled; no site has as many.
const MOST: usize = 64;
/// Size of the receive buffer: a netlink message of the kernel has at most 32 KiB.
const BUFFER_BYTES: usize = 32 << 10;
/// The kernel answers within the system call. An answer that has not arrived after this time is
/// considered lost.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

impl Sampler {
    /// Starts sampling. Connections that begin later are sampled, too.
    ///
    /// # Errors
    /// The namespace cannot be entered, or the kernel does not report sockets.
    pub fn start(watch: SamplerScope) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, started) = mpsc::channel();
        let stopped = Arc::clone(&stop);
        let look = move || {
            // This thread need not leave the namespace again, since the thread ends when the sampling ends.
            let looking = watch.enter().and_then(|()| Looking::new(watch));
            let mut looking = match looking {
                Ok(looking) => looking,
                Err(error) => {
                    let _ = told.send(Err(error));
                    return Windows::default();
                }
            };
            let _ = told.send(Ok(()));
            looking.run(&stopped);
            looking.windows()
        };
        let thread = thread::Builder::new().name("windows".to_owned()).spawn(look)?;
        let ended = || Err(io::Error::other("the thread that samples windows has ended"));
        started.recv().unwrap_or_else(|_| ended())?;
        Ok(Self { stop, thread })
    }

    /// Stops sampling and returns the summary of the sampled windows.
    ///
    /// # Panics
    /// If the thread panicked.
    #[must_use]
    pub fn stop(self) -> Windows {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}

impl SamplerScope {
    fn enter(&self) -> io::Result<()> {
        let Some(path) = &self.namespace else { return Ok(()) };
        let file = File::open(path)?;
        Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

struct Looking {
    watch: SamplerScope,
    socket: OwnedFd,
    buffer: Vec<u8>,
    sockets: Vec<SampledSocket>,
    looks: Looks,
    /// The sequence number of the last request to the kernel.
    asked: u32,
    missed: u64,
}

/// A TCP connection, with the first and the last sample of its state.
struct SampledSocket {
    family: AddressFamily,
    id: SocketId,
    first: TcpInfo,
    last: TcpInfo,
    is_there: bool,
}

impl Looking {
    fn new(watch: SamplerScope) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_LIMIT))?;
        let (buffer, sockets) = (vec![0; BUFFER_BYTES], vec![]);
        let looks = Looks::default();
        let mut looking = Self { watch, socket, buffer, sockets, looks, asked: 0, missed: 0 };
        // Search for connections once before the sampling begins: an error here shows that the kernel does not support
        // such queries.
        looking.list()?;
        Ok(looking)
    }

    fn run(&mut self, stop: &AtomicBool) {
        let started = Instant::now();
        let (mut next, mut next_list) = (started, started + LIST_EVERY);
        while !stop.load(Ordering::Relaxed) {
            if Instant::now() >= next_list {
                // Ignore an error: the next search finds the same connections.
                let _ = self.list();
                next_list = Instant::now() + LIST_EVERY;
            }
            self.look(started.elapsed());
            // If samples were missed because the thread was late, skip them: they would all have
            // the same time.
            next = (next + EVERY).max(Instant::now());
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    /// Asks the kernel for all connections in the scope, and adds the new ones to the list.
    fn list(&mut self) -> io::Result<()> {
        let port = Some(self.watch.port);
        let (remote, local) = if self.watch.at_target { (None, port) } else { (port, None) };
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            let mut found = vec![];
            self.ask(
                sock_diag::list(family.as_raw() as u8, remote, local),
                |answer| match answer {
                    SockDiagMessage::Socket(id, info) => {
                        found.push((id, info));
                        Ok(false)
                    }
                    SockDiagMessage::Failed(number) => Err(io::Error::from_raw_os_error(number)),
                    SockDiagMessage::Other => Ok(false),
                    SockDiagMessage::Done => Ok(true),
                },
            )?;
            for (id, info) in found {
                if self.sockets.len() < MOST && self.sockets.iter().all(|it| it.id != id) {
                    let seen =
                        SampledSocket { family, id, first: info, last: info, is_there: true };
                    self.sockets.push(seen);
                }
            }
        }
        Ok(())
    }

    /// Samples the congestion windows of all connections that still exist, at the time `at`.
    fn look(&mut self, at: Duration) {
        let mut sockets = std::mem::take(&mut self.sockets);
        let missed = self.missed;
        let mut now = Vec::with_capacity(sockets.len());
        for seen in sockets.iter_mut().filter(|seen| seen.is_there) {
            // Repeat the request once, in case the kernel's answer was lost. After a second error the whole
            // sample is dropped below.
            match self.one(seen).or_else(|_| self.one(seen)) {
                Ok(Some(info)) => {
                    seen.last = info;
                    now.push(info);
                }
                Ok(None) => seen.is_there = false,
                Err(_) => self.missed += 1,
            }
        }
        self.sockets = sockets;
        // Drop the whole sample if one connection did not answer: the sum of the windows would lack
        // its window.
        if self.missed == missed {
            self.looks.add(at, &now);
        }
    }

    /// Returns the kernel's information about a socket; `None` if it does not exist any more or is being closed.
    fn one(&mut self, seen: &SampledSocket) -> io::Result<Option<TcpInfo>> {
        let mut told = None;
        let request = sock_diag::one(seen.family.as_raw() as u8, &seen.id);
        self.ask(request, |answer| {
            told = Some(answer);
            Ok(true)
        })?;
        match told {
            Some(SockDiagMessage::Socket(id, info)) if id == seen.id => Ok(Some(info)),
            Some(SockDiagMessage::Failed(number)) if number != Errno::NOENT.raw_os_error() => {
                Err(io::Error::from_raw_os_error(number))
            }
            _ => Ok(None),
        }
    }

    /// Sends a request and passes each message of the answer to `take`, until `take` returns true.
    fn ask(
        &mut self,
        mut request: Vec<u8>,
        mut take: impl FnMut(SockDiagMessage) -> io::Result<bool>,
    ) -> io::Result<()> {
        self.asked = self.asked.wrapping_add(1);
        sock_diag::number(&mut request, self.asked);
        rustix::net::send(&self.socket, &request, SendFlags::empty())?;
        loop {
            let (length, _) =
                rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::empty())?;
            let mut is_empty = true;
            for (number, answer) in sock_diag::read(&self.buffer[..length]) {
                is_empty = false;
                // Ignore answers to earlier requests that arrive late.
                if number == self.asked && take(answer)? {
                    return Ok(());
                }
            }
            if is_empty {
                return Err(io::Error::other("the kernel sent a message of unknown form"));
            }
        }
    }

    fn windows(self) -> Windows {
        let mut counted = TcpSegmentCounters::default();
        self.sockets.iter().for_each(|seen| counted.add(&seen.first, &seen.last));
        Windows { missed: self.missed, ..self.looks.windows(counted) }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    /// Needs no privileges: the kernel reports the sockets of the caller's own namespace to every
    /// user.
    #[test]
    fn sockets_to_a_port_are_looked_at() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let [writes, reads] = [false, true].map(|at_target| {
            let started = Sampler::start(SamplerScope { namespace: None, port, at_target });
            started.expect("the kernel reports sockets")
        });
        let streams: Vec<(TcpStream, TcpStream)> = (0..2)
            .map(|_| {
                let near = TcpStream::connect(("127.0.0.1", port)).unwrap();
                (near, listener.accept().unwrap().0)
            })
            .collect();
        let until = Instant::now() + SETTLED_AND_MORE;
        thread::scope(|scope| {
            for (mut near, mut far) in streams {
                scope.spawn(move || {
                    while Instant::now() < until {
                        near.write_all(&[1; 65536]).unwrap();
                    }
                });
                scope.spawn(move || while far.read(&mut [0; 4096]).unwrap() > 0 {});
            }
        });
        let get = |windows: &Windows, name: &str| {
            windows.figures.iter().find(|it| it.name == name).map(|it| it.value)
        };
        let (writes, reads) = (writes.stop(), reads.stop());
        assert_eq!(get(&writes, "connections"), Some(2.0), "{:?}", writes.figures);
        assert!(get(&writes, "window mean").unwrap() >= 2.0, "{:?}", writes.figures);
        assert!(get(&writes, "segments sent").unwrap() > 0.0);
        assert_eq!(get(&reads, "segments sent"), Some(0.0), "nothing was sent back");
    }

    const SETTLED_AND_MORE: Duration = Duration::from_millis(1600);

    #[test]
    fn a_missing_namespace_is_an_error() {
        let namespace = Some("/run/netns/forebay-none".into());
        assert!(Sampler::start(SamplerScope { namespace, port: 1, at_target: false }).is_err());
    }
}
