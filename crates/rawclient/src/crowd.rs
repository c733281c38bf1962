//! Drives several connections, of one session or of many, with one load and in one thread.

use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use anyhow::{Result, ensure};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::wire::SILENCE;

/// A connection that a [`Crowd`] drives with a load `L`.
pub trait CrowdConnection<L> {
    /// Sends as many commands as the load and the socket accept. Returns true if the load tells the
    /// crowd to stop.
    fn send(&mut self, load: &mut L, now: Instant) -> Result<bool>;

    /// Handles the responses that have arrived, without waiting for more.
    fn receive(&mut self, load: &mut L, now: Instant) -> Result<()>;

    /// Returns the number of commands that were sent and are not answered.
    fn in_flight(&self) -> usize;

    /// Returns true if bytes wait because the socket accepts no more.
    fn is_sending(&self) -> bool;

    /// Returns the socket of the connection, for epoll.
    fn socket(&self) -> &TcpStream;
}

/// Many connections, with an epoll instance that reports which of them are ready.
pub struct Crowd<M> {
    members: Vec<M>,
    waiting: OwnedFd,
    /// For each connection, true if epoll also reports when its socket accepts more output.
    sending: Vec<bool>,
}

impl<M> Crowd<M> {
    /// Creates a crowd of these connections, and registers their sockets with epoll.
    pub fn new<L>(members: Vec<M>) -> Result<Crowd<M>>
    where
        M: CrowdConnection<L>,
    {
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, member) in members.iter().enumerate() {
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&waiting, member.socket().as_fd(), data, epoll::EventFlags::IN)?;
        }
        let sending = vec![false; members.len()];
        Ok(Crowd { members, waiting, sending })
    }

    pub fn members_mut(&mut self) -> &mut [M] {
        &mut self.members
    }

    /// Sends commands of the load on every connection until the load tells the crowd to stop.
    pub fn run<L>(&mut self, load: &mut L) -> Result<()>
    where
        M: CrowdConnection<L>,
    {
        let now = Instant::now();
        for number in 0..self.members.len() {
            if self.send(number, load, now)? {
                return Ok(());
            }
        }
        let mut events = Vec::with_capacity(self.members.len());
        loop {
            ensure!(
                self.members.iter().any(|member| member.in_flight() > 0),
                "nothing is in flight, but the window is closed or the load waits"
            );
            let limit = Timespec { tv_sec: SILENCE, tv_nsec: 0 };
            events.clear();
            rustix::io::retry_on_intr(|| {
                epoll::wait(&self.waiting, spare_capacity(&mut events), Some(&limit))
            })?;
            ensure!(!events.is_empty(), "no answer for {SILENCE} s");
            let now = Instant::now();
            for event in &events {
                let number = event.data.u64() as usize;
                self.members[number].receive(load, now)?;
                if self.send(number, load, now)? {
                    return Ok(());
                }
            }
            // Try to send on each connection: a response on one may have opened the command window
            // for all of them, and an idle connection receives nothing that would wake it.
            for number in 0..self.members.len() {
                if self.members[number].in_flight() == 0 && self.send(number, load, now)? {
                    return Ok(());
                }
            }
        }
    }

    /// Sends on one connection and updates what epoll reports for it. Returns true if the load
    /// tells the crowd to stop.
    fn send<L>(&mut self, number: usize, load: &mut L, now: Instant) -> Result<bool>
    where
        M: CrowdConnection<L>,
    {
        let member = &mut self.members[number];
        if member.send(load, now)? {
            return Ok(true);
        }
        let sending = member.is_sending();
        if self.sending[number] != sending {
            let out = if sending { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            let data = epoll::EventData::new_u64(number as u64);
            let wanted = epoll::EventFlags::IN | out;
            epoll::modify(&self.waiting, member.socket().as_fd(), data, wanted)?;
            self.sending[number] = sending;
        }
        Ok(false)
    }
}
