//! Relays bytes between an initiator and a node, until the test cuts or stalls the connections.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Passes,
    /// The relay passes no bytes in either direction, but keeps the sockets open.
    Stalls,
    /// The relay inverts all bits of the data that it passes.
    Damages,
    Cut,
}

pub struct Relay {
    pub address: SocketAddr,
    /// The number of relayed bytes: to the node, and from the node.
    pub passed: [Arc<AtomicU64>; 2],
    lines: Arc<Mutex<Vec<watch::Sender<State>>>>,
    accepting: JoinHandle<()>,
}

impl Relay {
    pub async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let all = lines.clone();
        let passed = [Arc::<AtomicU64>::default(), Arc::default()];
        let counts = passed.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let state = watch::Sender::new(State::Passes);
                all.lock().push(state.clone());
                let [there, back] = counts.clone();
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(to).await else { return };
                    let _ = (near.set_nodelay(true), far.set_nodelay(true));
                    let ((near_in, near_out), (far_in, far_out)) =
                        (near.into_split(), far.into_split());
                    // When one direction ends, close the other one as well.
                    tokio::select! {
                        () = pass(near_in, far_out, state.subscribe(), there) => {}
                        () = pass(far_in, near_out, state.subscribe(), back) => {}
                    }
                    state.send_replace(State::Cut);
                });
            }
        });
        Self { address, passed, lines, accepting }
    }

    /// Closes all relayed connections, but continues to accept new ones.
    pub fn cut(&self) {
        self.lines.lock().drain(..).for_each(|line| _ = line.send_replace(State::Cut));
    }

    /// Closes all relayed connections, and refuses new ones.
    pub async fn close(&mut self) {
        self.accepting.abort();
        // Wait until the accepting task has ended, which closes its listener.
        let _ = (&mut self.accepting).await;
        self.cut();
    }

    /// Closes one of the open connections: the one with the index `which`, modulo their number.
    pub fn cut_one(&self, which: usize) {
        self.standing(which).send_replace(State::Cut);
    }

    /// Stalls the open connection with the index `which`.
    pub fn stall(&self, which: usize) {
        self.standing(which).send_replace(State::Stalls);
    }

    /// From now on, inverts all bits that the open connection with the index `which` relays.
    pub fn damage(&self, which: usize) {
        self.standing(which).send_replace(State::Damages);
    }

    pub fn go_on(&self) {
        for line in self.lines.lock().iter() {
            line.send_if_modified(|state| {
                let stalls = *state == State::Stalls;
                if stalls {
                    *state = State::Passes;
                }
                stalls
            });
        }
    }

    fn standing(&self, which: usize) -> watch::Sender<State> {
        let mut lines = self.lines.lock();
        lines.retain(|line| *line.borrow() != State::Cut);
        lines[which % lines.len()].clone()
    }
}

/// Relays one direction until its sender closes the socket or the connection is cut. Bytes that were read are always
/// written completely.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: watch::Receiver<State>,
    passed: Arc<AtomicU64>,
) {
    let mut buffer = vec![0; 64 * 1024];
    let (mut state, mut cut) = (state.clone(), state);
    loop {
        let Ok(now) = state.wait_for(|state| *state != State::Stalls).await.map(|now| *now) else {
            return;
        };
        if now == State::Cut {
            return;
        }
        let count = tokio::select! {
            read = from.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(count) => count,
            },
            _ = state.changed() => continue,
        };
        passed.fetch_add(count as u64, Ordering::Relaxed);
        if *state.borrow() == State::Damages {
            buffer[..count].iter_mut().for_each(|byte| *byte = !*byte);
        }
        tokio::select! {
            written = to.write_all(&buffer[..count]) => if written.is_err() {
                return;
            },
            _ = cut.wait_for(|state| *state == State::Cut) => return,
        }
    }
}
