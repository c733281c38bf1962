//! Ensembles: all connections of a session share one congestion window.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::{
    Error, control_block::EnsembleControlBlock, loader::LoadedCongestionControl,
    program::EnsembleAlgorithm, retransmit_timer,
};

/// The maximum number of ensembles at a time. No node has more sessions. The block of an ensemble has 80 bytes, or 344
/// with a path model.
pub const MAX_ENSEMBLES: u32 = 1024;

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EnsembleOptions {
    /// The name that `tcp_available_congestion_control` lists, 1 to 12 characters. If another process uses the name,
    /// `_2`, `_3` and so on is appended. Default `fairtcp`.
    pub name: String,
    pub growth: Growth,
    pub sharing: WindowSharing,
}

impl Default for EnsembleOptions {
    fn default() -> Self {
        Self {
            name: "fairtcp".to_owned(),
            growth: Growth::PerSegment,
            sharing: WindowSharing::Session,
        }
    }
}

/// How a congestion window grows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Growth {
    /// The window grows by one step per acknowledgment, as in Linux 2.4 and thus in the paper. If the receiver
    /// acknowledges only every second segment, windows stay smaller than with `PerSegment`.
    PerAck,
    /// The window grows by the number of acknowledged segments (RFC 3465).
    PerSegment,
    /// The window follows a model of the path that the members share: its bandwidth and its minimum round trip time,
    /// which BBR estimates for a single connection. Losses do not reduce the window, and the members send at a limited
    /// rate (pacing).
    ByModel,
}

/// Which connections share a congestion window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WindowSharing {
    /// Each connection has its own window. The same BPF program runs, but the connections share nothing. Measurements
    /// use this as the baseline.
    Connection,
    /// All connections of a session (an ensemble) share one window.
    Session,
}

/// The loaded congestion control. The kernel offers it until this value and all its ensembles are dropped, or until the
/// process ends. Connections that use the congestion control at that time keep it until they are closed.
pub struct Fair {
    loaded: LoadedCongestionControl,
    options: EnsembleOptions,
    /// For each control block, true if an ensemble of this process uses it.
    taken: Mutex<Vec<bool>>,
}

impl Fair {
    /// Loads the BPF programs and registers them with the kernel, which takes tens of milliseconds.
    ///
    /// # Errors
    /// The error says what the kernel or the process lacks; [`Error::remedy`] says how to get it.
    pub fn load(options: &EnsembleOptions) -> Result<Self, Error> {
        let algorithm = match options.growth {
            Growth::ByModel => EnsembleAlgorithm::Model,
            Growth::PerAck | Growth::PerSegment => EnsembleAlgorithm::Window,
        };
        let loaded = LoadedCongestionControl::load(&options.name, MAX_ENSEMBLES, algorithm)?;
        let taken = Mutex::new(vec![false; MAX_ENSEMBLES as usize]);
        Ok(Self { loaded, options: options.clone(), taken })
    }

    /// Returns the name under which the kernel knows the congestion control (TCP_CONGESTION).
    #[must_use]
    pub fn name(&self) -> &str {
        &self.loaded.name
    }

    /// Allocates a control block that no ensemble uses and that no connection is a member of.
    fn take_block(&self) -> Result<u32, Error> {
        let mut taken = lock(&self.taken);
        let is_free = |&number: &u32| {
            !taken[number as usize] && self.loaded.blocks.block(number).members == 0
        };
        let number = (0..MAX_ENSEMBLES).find(is_free).ok_or(Error::NoRoom(MAX_ENSEMBLES))?;
        self.loaded.clear_block(number, self.options.growth == Growth::PerAck)?;
        taken[number as usize] = true;
        Ok(number)
    }

    fn give_back(&self, number: u32) {
        lock(&self.taken)[number as usize] = false;
    }
}

/// The connections of one session to one destination. Dropping an ensemble does not remove its connections; its block
/// can be used again when the last connection has left. (The kernel may omit a call of the BPF program. If this happens
/// when a member leaves, the member is counted forever, and the block cannot be used again until the process ends.)
pub struct Ensemble {
    fair: Arc<Fair>,
    /// The numbers of the ensemble's control blocks: a single one, or with [`WindowSharing::Connection`] one for each
    /// connection.
    blocks: Mutex<Vec<u32>>,
}

impl Ensemble {
    /// Creates an ensemble without connections.
    ///
    /// # Errors
    /// [`Error::NoRoom`].
    pub fn new(fair: &Arc<Fair>) -> Result<Self, Error> {
        let blocks = match fair.options.sharing {
            WindowSharing::Connection => vec![],
            WindowSharing::Session => vec![fair.take_block()?],
        };
        Ok(Self { fair: fair.clone(), blocks: Mutex::new(blocks) })
    }

    /// Makes a connected TCP socket a member, and shortens its retransmission timer if the kernel supports it (since
    /// Linux 6.15; this lasts until the socket is closed). The member leaves when it is closed or selects another
    /// congestion control. A socket that is a member of this ensemble already is not changed. A socket that has this
    /// congestion control for another reason, for instance a sysctl, becomes a member.
    ///
    /// # Errors
    /// [`Error::NotConnected`]; [`Error::NoRoom`]; errors of the kernel. The socket keeps its previous congestion
    /// control then.
    pub fn join(&self, socket: impl AsFd) -> Result<(), Error> {
        let socket = socket.as_fd();
        check_connected(socket)?;
        // Keep this lock until the end: otherwise another call could consider the block unused before the socket has
        // joined.
        let mut blocks = lock(&self.blocks);
        let kernel = |error: rustix::io::Errno| Error::Kernel {
            step: "TCP_CONGESTION",
            error: error.into(),
        };
        let name = sockopt::tcp_congestion(socket).map_err(kernel)?;
        let has_it = name == self.fair.name();
        let before = self.fair.loaded.assigned(socket)?;
        if has_it && before.is_some_and(|block| blocks.contains(&block)) {
            return Ok(());
        }
        let block = self.block_for_one_more(&mut blocks)?;
        // Assign the socket to the block first. The assignment has no effect until the socket selects this congestion
        // control.
        let joined = self.fair.loaded.assign(socket, block).and_then(|()| {
            if has_it {
                // The socket uses this congestion control already: because of a sysctl and without an ensemble, or in
                // another ensemble. Selecting the same name again would have no effect. Select Reno first, which is in
                // every kernel and allowed for all users.
                sockopt::set_tcp_congestion(socket, "reno").map_err(kernel)?;
            }
            sockopt::set_tcp_congestion(socket, self.fair.name()).map_err(kernel)
        });
        if joined.is_err() {
            // Restore the socket's former assignment and congestion control as far as the kernel permits. Report only
            // the error of the failed join.
            let _ = match before {
                Some(block) => self.fair.loaded.assign(socket, block),
                None => self.fair.loaded.unassign(socket),
            };
            if has_it {
                let _ = sockopt::set_tcp_congestion(socket, &name);
            }
            if self.fair.options.sharing == WindowSharing::Connection {
                blocks.retain(|&number| number != block);
                self.fair.give_back(block);
            }
            return joined;
        }
        // Ignore an error: the socket is a member even if the kernel does not support this option.
        let _ = retransmit_timer::shorten(socket);
        Ok(())
    }

    /// Returns the number of the block that the next member uses.
    fn block_for_one_more(&self, blocks: &mut Vec<u32>) -> Result<u32, Error> {
        match self.fair.options.sharing {
            WindowSharing::Session => Ok(blocks[0]),
            WindowSharing::Connection => {
                let is_deserted = |number: u32| self.fair.loaded.blocks.block(number).members == 0;
                let deserted = blocks.iter().position(|&number| is_deserted(number));
                deserted.into_iter().for_each(|at| self.fair.give_back(blocks.swap_remove(at)));
                let block = self.fair.take_block()?;
                blocks.push(block);
                Ok(block)
            }
        }
    }

    /// Returns the present shared state: one block, or with [`WindowSharing::Connection`] one for each connection.
    #[must_use]
    pub fn blocks(&self) -> Vec<EnsembleControlBlock> {
        lock(&self.blocks).iter().map(|&number| self.fair.loaded.blocks.block(number)).collect()
    }
}

impl Drop for Ensemble {
    fn drop(&mut self) {
        lock(&self.blocks).iter().for_each(|&number| self.fair.give_back(number));
    }
}

fn check_connected(socket: BorrowedFd<'_>) -> Result<(), Error> {
    let not = |error: rustix::io::Errno| Error::NotConnected(error.into());
    let is_stream = sockopt::socket_type(socket).map_err(not)? == SocketType::STREAM;
    let family = sockopt::socket_domain(socket).map_err(not)?;
    if !is_stream || !matches!(family, AddressFamily::INET | AddressFamily::INET6) {
        return Err(Error::NotConnected(io::Error::from_raw_os_error(libc::EPROTOTYPE)));
    }
    rustix::net::getpeername(socket).map(drop).map_err(not)
}

/// Locks a mutex, even after a panic: a panic while one of these mutexes is locked cannot leave inconsistent data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// If the kernel cannot load the congestion control, these tests print a message and end, like those in
/// `tests/kernel.rs`.
#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    fn load(name: &str, sharing: WindowSharing) -> Option<Fair> {
        let options =
            EnsembleOptions { name: name.to_owned(), sharing, ..EnsembleOptions::default() };
        match Fair::load(&options) {
            Ok(fair) => Some(fair),
            Err(error) => {
                println!("not run: {error}");
                None
            }
        }
    }

    fn connection() -> [TcpStream; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [near, listener.accept().unwrap().0]
    }

    fn name(socket: &TcpStream) -> String {
        sockopt::tcp_congestion(socket).unwrap()
    }

    /// A regression test. A socket that used this congestion control because of a sysctl was left with Reno if its
    /// attempt to join an ensemble failed.
    #[test]
    fn a_socket_that_cannot_join_keeps_its_congestion_control() {
        let Some(mut fair) = load("fairtest_u", WindowSharing::Session) else { return };
        let [usual, _usual] = connection();
        let [by_sysctl, _by_sysctl] = connection();
        let usual_name = name(&usual);
        sockopt::set_tcp_congestion(&by_sysctl, fair.name()).unwrap();
        fair.loaded.refuse_assignments();
        let session = Ensemble::new(&Arc::new(fair)).unwrap();
        for (socket, before) in [(&usual, &*usual_name), (&by_sysctl, session.fair.name())] {
            let told = session.join(socket).unwrap_err().to_string();
            assert!(told.contains("assigning a socket"), "{told}");
            assert_eq!(name(socket), before);
        }
        assert_eq!(session.blocks()[0].members, 0);
    }

    #[test]
    fn a_socket_that_finds_no_free_ensemble_keeps_its_congestion_control() {
        let Some(fair) = load("fairtest_v", WindowSharing::Connection) else { return };
        let [socket, _far] = connection();
        sockopt::set_tcp_congestion(&socket, fair.name()).unwrap();
        lock(&fair.taken).fill(true);
        let session = Ensemble::new(&Arc::new(fair)).unwrap();
        assert!(matches!(session.join(&socket), Err(Error::NoRoom(MAX_ENSEMBLES))));
        assert_eq!(name(&socket), session.fair.name());
    }

    #[test]
    fn a_congestion_control_that_cannot_be_selected_changes_nothing() {
        let Some(mut fair) = load("fairtest_w", WindowSharing::Connection) else { return };
        let [socket, _far] = connection();
        let before = name(&socket);
        fair.loaded.name = "nobody_has_it".to_owned();
        let session = Ensemble::new(&Arc::new(fair)).unwrap();
        let told = session.join(&socket).unwrap_err().to_string();
        assert!(told.contains("TCP_CONGESTION"), "{told}");
        assert_eq!(name(&socket), before);
        assert_eq!(session.fair.loaded.assigned(socket.as_fd()).unwrap(), None);
        assert_eq!(session.blocks(), []);
        assert!(lock(&session.fair.taken).iter().all(|is_taken| !is_taken));
    }
}
