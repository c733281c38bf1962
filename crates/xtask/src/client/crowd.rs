//! Several connections, of one session or of many, under one load by one thread.

use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::{Result, ensure};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::client::Login;
use crate::client::session::{Session, Shape, Workload};
use crate::client::wire::SILENCE;

/// Connections and what waits for them to have something to say.
pub struct Crowd {
    members: Vec<Session>,
    waiting: rustix::fd::OwnedFd,
    /// Which of them are also waited for until they take bytes again.
    sending: Vec<bool>,
}

impl Crowd {
    /// Logs in: so many sessions, each with the connections that `login` asks for.
    pub fn open(login: &Login, sessions: usize, shape: Shape) -> Result<Crowd> {
        let mut members = vec![];
        for _ in 0..sessions {
            let leading = Session::open(login, shape)?;
            for cid in 1..login.connections {
                members.push(leading.join(login, cid)?);
            }
            members.push(leading);
        }
        Crowd::new(members)
    }

    /// Blocks and bytes of a block of the unit.
    pub fn capacity(&mut self) -> Result<(u64, u32)> {
        self.members[0].capacity()
    }

    fn new(members: Vec<Session>) -> Result<Crowd> {
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, member) in members.iter().enumerate() {
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&waiting, member.socket().as_fd(), data, epoll::EventFlags::IN)?;
        }
        let sending = vec![false; members.len()];
        Ok(Crowd { members, waiting, sending })
    }

    /// Sends what the workload asks for on every connection until it says stop.
    pub fn run(&mut self, workload: &mut impl Workload) -> Result<()> {
        if let [only] = &mut self.members[..] {
            return only.run(workload);
        }
        let now = Instant::now();
        for number in 0..self.members.len() {
            if self.send(number, workload, now)? {
                return Ok(());
            }
        }
        let mut events = Vec::with_capacity(self.members.len());
        loop {
            ensure!(
                self.members.iter().any(|member| member.in_flight() > 0),
                "nothing is in flight, but the window is closed or the workload waits"
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
                self.members[number].receive(workload, now)?;
                if self.send(number, workload, now)? {
                    return Ok(());
                }
            }
            // What one connection hears opens the window for others, which hear nothing.
            for number in 0..self.members.len() {
                if self.members[number].in_flight() == 0 && self.send(number, workload, now)? {
                    return Ok(());
                }
            }
        }
    }

    /// Waits for what is in flight, without sending more.
    pub fn drain(&mut self, workload: &mut impl Workload) -> Result<()> {
        self.members.iter_mut().try_for_each(|member| member.drain(workload))
    }

    /// True if the workload says stop.
    fn send(&mut self, number: usize, workload: &mut impl Workload, now: Instant) -> Result<bool> {
        let member = &mut self.members[number];
        if member.send(workload, now)? {
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
