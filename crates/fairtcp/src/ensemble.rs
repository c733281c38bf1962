//! Ensembles: the connections of a session take up one congestion window.

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

/// So many ensembles at a time. A node has as many sessions at most; a block has 80 bytes, or 344 with a model
/// of the path.
pub const MAX_ENSEMBLES: u32 = 1024;

/// What is loaded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EnsembleOptions {
    /// The name in `tcp_available_congestion_control`, 1 to 12 characters. Where another process has it,
    /// `_2` and so on is added. Default `fairtcp`.
    pub name: String,
    /// How a window grows.
    pub growth: Growth,
    /// Which connections share one.
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

/// What counts when a window grows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Growth {
    /// Each acknowledgment, whatever it acknowledges, as Linux 2.4 did and with it the paper: windows are
    /// smaller where the receiver acknowledges every other segment.
    PerAck,
    /// The segments acknowledged (RFC 3465).
    PerSegment,
    /// By a model of the path, its bandwidth and least round trip time, that the members share: what BBR is
    /// for one connection. A loss says nothing then, and members are paced.
    ByModel,
}

/// Which connections share a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WindowSharing {
    /// Each has its own: the same program without what it is for, to measure that by.
    Connection,
    /// Those of one ensemble.
    Session,
}

/// The congestion control, loaded. When it and all its ensembles are dropped, or the process ends, the
/// kernel offers it no more; connections that use it keep it until they are closed.
pub struct Fair {
    loaded: LoadedCongestionControl,
    options: EnsembleOptions,
    /// Which blocks belong to an ensemble of this process.
    taken: Mutex<Vec<bool>>,
}

impl Fair {
    /// Loads the programs and registers them. Takes tens of milliseconds.
    ///
    /// # Errors
    /// What is missing; [`Error::remedy`] says what would help.
    pub fn load(options: &EnsembleOptions) -> Result<Self, Error> {
        let algorithm = match options.growth {
            Growth::ByModel => EnsembleAlgorithm::Model,
            Growth::PerAck | Growth::PerSegment => EnsembleAlgorithm::Window,
        };
        let loaded = LoadedCongestionControl::load(&options.name, MAX_ENSEMBLES, algorithm)?;
        let taken = Mutex::new(vec![false; MAX_ENSEMBLES as usize]);
        Ok(Self { loaded, options: options.clone(), taken })
    }

    /// The name it has been given, as TCP_CONGESTION tells it of a connection.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.loaded.name
    }

    /// A block that no ensemble has and no socket is still in.
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

/// The connections of one session to one destination. Dropping it takes no connection out; the block is
/// used again when the last has left. (A member whose leaving the kernel does not tell the program, which
/// may happen as to any call of it, is counted for ever; that block is lost until the process ends.)
pub struct Ensemble {
    fair: Arc<Fair>,
    /// One, or with [`WindowSharing::Connection`] one for each connection.
    blocks: Mutex<Vec<u32>>,
}

impl Ensemble {
    /// One without members.
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

    /// Makes a connected TCP socket a member, and its retransmission timer shorter where the kernel can
    /// (Linux 6.15; it stays so for the life of the socket). It leaves when it is closed or takes up another congestion
    /// control. One that is a member of this ensemble already stays what it is; one that has this
    /// congestion control otherwise, for instance by a sysctl, becomes a member.
    ///
    /// # Errors
    /// [`Error::NotConnected`]; [`Error::NoRoom`]; what the kernel says. The socket has the congestion
    /// control that it had.
    pub fn join(&self, socket: impl AsFd) -> Result<(), Error> {
        let socket = socket.as_fd();
        check_connected(socket)?;
        // One at a time, so that the block is not taken for deserted before the socket is in it.
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
        // What is assigned counts only when the name is selected: until then nothing has changed for the socket.
        let joined = self.fair.loaded.assign(socket, block).and_then(|()| {
            if has_it {
                // It has the name from a sysctl, and nobody's window, or that of another ensemble: selecting the same
                // again would do nothing. Every kernel has this one, and allows it.
                sockopt::set_tcp_congestion(socket, "reno").map_err(kernel)?;
            }
            sockopt::set_tcp_congestion(socket, self.fair.name()).map_err(kernel)
        });
        if joined.is_err() {
            // Each as far as the kernel lets us; why it does not is the reason that is told.
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
        // A kernel that knows no other timer than its own: it is a member all the same.
        let _ = retransmit_timer::shorten(socket);
        Ok(())
    }

    /// The block for another member.
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

    /// What the members share, as it is now: one block, or with [`WindowSharing::Connection`] one for each.
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

/// Nothing that is done under the locks can leave them half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As the tests of the kernel: where a congestion control cannot be loaded they say so and end.
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

    /// One that had the name by a sysctl was left with Reno.
    #[test]
    fn who_cannot_join_is_as_before() {
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
    fn who_finds_no_room_is_as_before() {
        let Some(fair) = load("fairtest_v", WindowSharing::Connection) else { return };
        let [socket, _far] = connection();
        sockopt::set_tcp_congestion(&socket, fair.name()).unwrap();
        lock(&fair.taken).fill(true);
        let session = Ensemble::new(&Arc::new(fair)).unwrap();
        assert!(matches!(session.join(&socket), Err(Error::NoRoom(MAX_ENSEMBLES))));
        assert_eq!(name(&socket), session.fair.name());
    }

    #[test]
    fn a_name_that_cannot_be_selected_leaves_nothing_behind() {
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
