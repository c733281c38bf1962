//! The model for these tests: several gateways, a node, and the messages between them.

use std::collections::BTreeSet;

use coherence::{
    Begin, Cleaning, CoherenceRange, CoherenceReply, CoherenceRequest, CoherenceTicket,
    CoherenceToken, Grantor, Holder, Millis, SharingMember, Terms,
};
use stateright::{Model, Property};

/// The modelled system: its size, how many events it may have, and the fault in its protocol.
#[derive(Clone, Debug)]
pub struct Scene {
    pub gateways: usize,
    pub ranges: u32,
    pub budget: Budget,
    pub fault: Fault,
}

/// How often each event may happen.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Budget {
    pub uses: u8,
    pub gateway_crashes: u8,
    pub node_crashes: u8,
    pub losses: u8,
    pub repeats: u8,
    /// How much time may pass, in quarters of a lease.
    pub ticks: u8,
}

impl Budget {
    pub const NONE: Self =
        Self { uses: 0, gateway_crashes: 0, node_crashes: 0, losses: 0, repeats: 0, ticks: 0 };
}

/// A fault that is put into the protocol on purpose. The search through the states must find a violation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    None,
    /// Fault to detect: the node grants exclusive tokens of a silent gateway to other gateways.
    ExclusiveEndsWithLease,
    /// Fault to detect: after its restart, the node does not wait for its former members.
    RestartDoesNotWait,
    /// Fault to detect: a gateway measures its lease from the arrival of the answer, instead of its own request.
    LeaseFromTheAnswer,
    /// Fault to detect: a gateway releases a token before it has destaged the dirty data of the range.
    ReleaseBeforeDestage,
    /// Fault to detect: a gateway keeps the cached data of a range whose token it releases.
    CachedIsKept,
    /// Fault to detect: the node accepts every write, even one from an earlier session.
    LateWritesAreTaken,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct World {
    now: Millis,
    budget: Budget,
    node: Grantor,
    starts: u64,
    /// The members that may have dirty data, as recorded in the stable storage of the node.
    members: BTreeSet<SharingMember>,
    /// For each range, the number of the last write that the node has stored.
    home: Vec<u8>,
    gateways: Vec<Gateway>,
    wire: BTreeSet<Letter>,
    /// The newest acknowledged write of each range.
    acknowledged: Vec<u8>,
    pub violated: Option<&'static str>,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Gateway {
    session: u8,
    /// `None` while the gateway is down.
    holder: Option<Holder>,
    cached: Vec<Option<u8>>,
    /// For each range the write in the gateway's log, which survives a crash of the gateway.
    dirty: Vec<Option<u8>>,
    cleaning: BTreeSet<Cleaning>,
    uses: Vec<Use>,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Use {
    range: CoherenceRange,
    token: CoherenceToken,
    /// The ticket for which the use waits; `None` when the use has begun.
    waits: Option<CoherenceTicket>,
    /// The number of the newest acknowledged write when the gateway began to use the range. A read that returns an
    /// older write is stale.
    at_least: u8,
}

/// A message in flight. A message of an earlier session does not arrive.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
enum Letter {
    Up(u8, u8, CoherenceRequest),
    Down(u8, u8, CoherenceReply),
    /// A write to the node: gateway, session, range, number.
    Write(u8, u8, CoherenceRange, u8),
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Act {
    Arrives(String, usize),
    ArrivesAndComesAgain(String, usize),
    IsLost(String, usize),
    Begins(usize, CoherenceRange, CoherenceToken),
    Ends(usize, usize),
    SendsDown(usize, CoherenceRange),
    HasCleaned(usize, Cleaning),
    Crashes(usize),
    Restarts(usize),
    NodeCrashes,
    TimePasses,
    LooksAtItsClock(usize),
    NodeLooksAtItsClock,
}

const TICK: Millis = 2;
const LEASE: Millis = 8;

impl World {
    /// Ends the process of a gateway. Only its log remains, which has its dirty data.
    fn crash_gateway(&mut self, name: usize) {
        self.budget.gateway_crashes -= 1;
        let gateway = &mut self.gateways[name];
        gateway.holder = None;
        gateway.cached.fill(None);
        gateway.cleaning.clear();
        gateway.uses.clear();
    }
}

impl Scene {
    fn terms(&self) -> Terms {
        Terms { lease: LEASE, ranges: self.ranges }
    }

    fn awaited(&self, world: &World) -> Vec<SharingMember> {
        match self.fault {
            Fault::RestartDoesNotWait => Vec::new(),
            _ => world.members.iter().copied().collect(),
        }
    }

    fn deliver(&self, world: &mut World, letter: Letter) {
        let now = world.now;
        match letter {
            Letter::Up(from, session, request) => {
                if world.gateways[from as usize].session == session {
                    world.node.handle(SharingMember(from.into()), request, now);
                }
            }
            Letter::Down(to, session, answer) => {
                let gateway = &mut world.gateways[to as usize];
                if gateway.session != session {
                    return;
                }
                let Some(holder) = &mut gateway.holder else { return };
                let answer = match answer {
                    CoherenceReply::Renewed { life, .. }
                        if self.fault == Fault::LeaseFromTheAnswer =>
                    {
                        CoherenceReply::Renewed { life, sent: now }
                    }
                    answer => answer,
                };
                holder.handle(answer, now);
            }
            Letter::Write(from, session, range, write) => {
                let may = world.node.may_write(SharingMember(from.into()), range)
                    && world.gateways[from as usize].session == session;
                if !may && self.fault != Fault::LateWritesAreTaken {
                    return;
                }
                let home = &mut world.home[range.0 as usize];
                if *home > write {
                    world.violated = Some("a late write was taken");
                }
                *home = write;
                let gateway = &mut world.gateways[from as usize];
                let dirty = &mut gateway.dirty[range.0 as usize];
                // The gateway receives the answer only if it is still in the session in which it sent the
                // write.
                if gateway.session == session && gateway.holder.is_some() && *dirty == Some(write) {
                    *dirty = None;
                    gateway.cached[range.0 as usize] = Some(write);
                }
            }
        }
    }

    fn forget_the_silent(&self, world: &mut World) {
        for member in (0..self.gateways as u32).map(SharingMember) {
            if world.node.standing(member, world.now).is_silent {
                world.node.remove(member, world.now);
            }
        }
    }

    fn use_ends(&self, world: &mut World, gateway: usize, at: usize) {
        let now = world.now;
        let here = &mut world.gateways[gateway];
        let done = here.uses.remove(at);
        let range = done.range.0 as usize;
        match done.token {
            CoherenceToken::SharedRead => {
                let seen = here.dirty[range].or(here.cached[range]).unwrap_or(world.home[range]);
                if here.dirty[range].is_none() {
                    here.cached[range] = Some(seen);
                }
                if seen < done.at_least {
                    world.violated = Some("a stale read");
                }
            }
            CoherenceToken::ExclusiveWrite => {
                world.acknowledged[range] += 1;
                here.dirty[range] = Some(world.acknowledged[range]);
                here.cached[range] = None;
            }
        }
        here.holder.as_mut().expect("it has uses").end(done.range, now);
    }

    fn restart(&self, world: &mut World, gateway: usize) {
        let (now, member) = (world.now, SharingMember(gateway as u32));
        let here = &mut world.gateways[gateway];
        here.session += 1;
        let dirty = (0..self.ranges).map(CoherenceRange);
        let dirty = dirty.filter(|range| here.dirty[range.0 as usize].is_some());
        here.holder = Some(Holder::new(LEASE, dirty.collect::<Vec<_>>(), now));
        world.members.insert(member);
        world.node.attach(member, now);
    }

    /// Restarts the node. From before, the node remembers only which members may have dirty data.
    fn crash_node(&self, world: &mut World) {
        let now = world.now;
        world.budget.node_crashes -= 1;
        world.starts += 1;
        world.node = Grantor::new(self.terms(), world.starts << 32, self.awaited(world), now);
        for (name, gateway) in world.gateways.iter_mut().enumerate() {
            gateway.session += 1;
            if let Some(holder) = &mut gateway.holder {
                world.node.attach(SharingMember(name as u32), now);
                holder.handle_reconnected(now);
            }
        }
    }

    /// Sends all messages that the state machines of node and gateways have produced.
    fn collect(&self, world: &mut World) {
        while let Some((to, answer)) = world.node.poll_answer() {
            let to = to.0 as u8;
            world.wire.insert(Letter::Down(to, world.gateways[to as usize].session, answer));
        }
        for (name, gateway) in world.gateways.iter_mut().enumerate() {
            let Some(holder) = &mut gateway.holder else { continue };
            while let Some(request) = holder.poll_request() {
                world.wire.insert(Letter::Up(name as u8, gateway.session, request));
            }
            while let Some(ticket) = holder.poll_begun() {
                let begun = gateway.uses.iter_mut().find(|begun| begun.waits == Some(ticket));
                begun.expect("who waits is known").waits = None;
            }
            while let Some(cleaning) = holder.poll_cleaning() {
                gateway.cleaning.insert(cleaning);
            }
        }
        let sessions: Vec<_> = world.gateways.iter().map(|gateway| gateway.session).collect();
        world.wire.retain(|letter| match letter {
            Letter::Up(of, session, _) | Letter::Down(of, session, _) => {
                sessions[*of as usize] == *session
            }
            // Keep writes of earlier sessions in flight: the node has to refuse them.
            Letter::Write(..) => true,
        });
        self.look(world);
    }

    /// Checks the invariants of every state of the model, and records a violation.
    fn look(&self, world: &mut World) {
        for range in (0..self.ranges).map(CoherenceRange) {
            let usable: Vec<_> = world
                .gateways
                .iter()
                .filter_map(|gateway| gateway.holder.as_ref()?.usable(range, world.now))
                .collect();
            if usable.contains(&CoherenceToken::ExclusiveWrite) && usable.len() > 1 {
                world.violated = Some("somebody beside a writer");
            }
            let at = range.0 as usize;
            let newest = world.gateways.iter().filter_map(|gateway| gateway.dirty[at]).max();
            if newest.unwrap_or(0).max(world.home[at]) < world.acknowledged[at] {
                world.violated = Some("an acknowledged write is lost");
            }
        }
        if world
            .gateways
            .iter()
            .any(|gateway| gateway.holder.as_ref().is_some_and(|h| h.lost().is_some()))
        {
            world.violated = Some("the node reported to a gateway that its data is lost");
        }
    }

    fn clean(&self, world: &mut World, gateway: usize, cleaning: Cleaning) {
        let now = world.now;
        let here = &mut world.gateways[gateway];
        here.cleaning.remove(&cleaning);
        if !cleaning.keeps && self.fault != Fault::CachedIsKept {
            here.cached[cleaning.range.0 as usize] = None;
        }
        here.holder.as_mut().expect("it asked for it").cleaned(cleaning.range, now);
    }

    fn is_clean(&self, gateway: &Gateway, range: CoherenceRange) -> bool {
        gateway.dirty[range.0 as usize].is_none() || self.fault == Fault::ReleaseBeforeDestage
    }

    fn send_down(&self, world: &mut World, name: usize, range: CoherenceRange) {
        let here = &world.gateways[name];
        let write = here.dirty[range.0 as usize].expect("it is dirty");
        world.wire.insert(Letter::Write(name as u8, here.session, range, write));
    }

    /// Continues without further faults. Returns true if every waiting use begins.
    fn settles(&self, world: &World) -> bool {
        let mut world = world.clone();
        for name in 0..self.gateways {
            if world.gateways[name].holder.is_none() {
                self.restart(&mut world, name);
            }
        }
        self.collect(&mut world);
        for _ in 0..24 {
            for _ in 0..400 {
                if let Some(letter) = world.wire.pop_first() {
                    self.deliver(&mut world, letter);
                    self.collect(&mut world);
                    continue;
                }
                let mut moved = false;
                for name in 0..self.gateways {
                    if let Some(at) =
                        world.gateways[name].uses.iter().position(|u| u.waits.is_none())
                    {
                        self.use_ends(&mut world, name, at);
                        moved = true;
                    }
                    // Take a step for every range: a range whose dirty data must be sent to the node does
                    // not delay the others.
                    for cleaning in world.gateways[name].cleaning.clone() {
                        if self.is_clean(&world.gateways[name], cleaning.range) {
                            self.clean(&mut world, name, cleaning);
                        } else {
                            self.send_down(&mut world, name, cleaning.range);
                        }
                        moved = true;
                    }
                    self.collect(&mut world);
                }
                if !moved {
                    break;
                }
            }
            if world.gateways.iter().all(|gateway| gateway.uses.is_empty()) {
                return world.violated.is_none();
            }
            world.now += TICK;
            let now = world.now;
            world.node.handle_timeout(now);
            for gateway in &mut world.gateways {
                gateway.holder.as_mut().expect("all are up").handle_timeout(now);
            }
            self.collect(&mut world);
        }
        false
    }
}

impl Model for Scene {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        let nothing = vec![None; self.ranges as usize];
        let gateway = Gateway {
            session: 0,
            holder: None,
            cached: nothing.clone(),
            dirty: nothing,
            cleaning: BTreeSet::new(),
            uses: Vec::new(),
        };
        let mut world = World {
            now: 0,
            budget: self.budget,
            node: Grantor::new(self.terms(), 1, [], 0),
            starts: 1,
            members: BTreeSet::new(),
            home: vec![0; self.ranges as usize],
            gateways: vec![gateway; self.gateways],
            wire: BTreeSet::new(),
            acknowledged: vec![0; self.ranges as usize],
            violated: None,
        };
        // Start with all gateways joined: restarts later cover faults before a Join.
        (0..self.gateways).for_each(|name| self.restart(&mut world, name));
        self.collect(&mut world);
        while let Some(letter) = world.wire.pop_first() {
            self.deliver(&mut world, letter);
            self.collect(&mut world);
        }
        vec![world]
    }

    fn actions(&self, world: &World, acts: &mut Vec<Act>) {
        if world.violated.is_some() {
            return;
        }
        let budget = world.budget;
        for (at, letter) in world.wire.iter().enumerate() {
            acts.push(Act::Arrives(format!("{letter:?}"), at));
            if budget.losses > 0 {
                acts.push(Act::IsLost(String::new(), at));
            }
            // A write command is not performed twice; the messages about tokens may be.
            if budget.repeats > 0 && !matches!(letter, Letter::Write(..)) {
                acts.push(Act::ArrivesAndComesAgain(String::new(), at));
            }
        }
        for (name, gateway) in world.gateways.iter().enumerate() {
            let Some(holder) = &gateway.holder else {
                acts.push(Act::Restarts(name));
                continue;
            };
            if budget.uses > 0 && gateway.uses.is_empty() {
                for range in (0..self.ranges).map(CoherenceRange) {
                    acts.push(Act::Begins(name, range, CoherenceToken::SharedRead));
                    acts.push(Act::Begins(name, range, CoherenceToken::ExclusiveWrite));
                }
            }
            for (at, _) in gateway.uses.iter().enumerate().filter(|(_, u)| u.waits.is_none()) {
                acts.push(Act::Ends(name, at));
            }
            for cleaning in &gateway.cleaning {
                if self.is_clean(gateway, cleaning.range) {
                    acts.push(Act::HasCleaned(name, *cleaning));
                } else {
                    acts.push(Act::SendsDown(name, cleaning.range));
                }
            }
            if budget.gateway_crashes > 0 {
                acts.push(Act::Crashes(name));
            }
            if world.now >= holder.poll_timeout() {
                acts.push(Act::LooksAtItsClock(name));
            }
        }
        if budget.node_crashes > 0 {
            acts.push(Act::NodeCrashes);
        }
        if budget.ticks > 0 {
            acts.push(Act::TimePasses);
        }
        if self.budget.ticks > 0 {
            acts.push(Act::NodeLooksAtItsClock);
        }
    }

    fn next_state(&self, last: &World, act: Act) -> Option<World> {
        let mut world = last.clone();
        let now = world.now;
        let nth = |world: &World, at: usize| world.wire.iter().nth(at).cloned();
        match act {
            Act::Arrives(_, at) => {
                let letter = nth(&world, at)?;
                world.wire.remove(&letter);
                self.deliver(&mut world, letter);
            }
            Act::ArrivesAndComesAgain(_, at) => {
                world.budget.repeats -= 1;
                let letter = nth(&world, at)?;
                self.deliver(&mut world, letter);
            }
            Act::IsLost(_, at) => {
                world.budget.losses -= 1;
                let letter = nth(&world, at)?;
                world.wire.remove(&letter);
            }
            Act::Begins(name, range, token) => {
                world.budget.uses -= 1;
                let at_least = world.acknowledged[range.0 as usize];
                let gateway = &mut world.gateways[name];
                let holder = gateway.holder.as_mut()?;
                let waits = match holder.begin(range, token, now) {
                    Begin::Now => None,
                    Begin::Waits(ticket) => Some(ticket),
                };
                gateway.uses.push(Use { range, token, waits, at_least });
            }
            Act::Ends(name, at) => self.use_ends(&mut world, name, at),
            Act::SendsDown(name, range) => self.send_down(&mut world, name, range),
            Act::HasCleaned(name, cleaning) => self.clean(&mut world, name, cleaning),
            Act::Crashes(name) => world.crash_gateway(name),
            Act::Restarts(name) => self.restart(&mut world, name),
            Act::NodeCrashes => self.crash_node(&mut world),
            Act::TimePasses => {
                world.budget.ticks -= 1;
                world.now += TICK;
            }
            Act::LooksAtItsClock(name) => world.gateways[name].holder.as_mut()?.handle_timeout(now),
            Act::NodeLooksAtItsClock => {
                if self.fault == Fault::ExclusiveEndsWithLease {
                    self.forget_the_silent(&mut world);
                }
                world.node.handle_timeout(now);
            }
        }
        self.collect(&mut world);
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing is violated", |_, world: &World| world.violated.is_none()),
            Property::always("everybody gets what he waits for", |scene: &Scene, world: &World| {
                scene.fault != Fault::None || world.violated.is_some() || scene.settles(world)
            }),
        ]
    }
}
