//! A volume leaves this node: it is copied while hosts use it, then they wait, what is left is copied, and the
//! other node has it. Until the record of that is stable here this node is right, and from then on the other.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ::names::{Gln, NodeName, VolumeName};
use parking_lot::Mutex;
use target::Redirect;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use volume::{Changes, Extent, Lba, Stack, Watched};

use super::{Node, ServedUnit};
use crate::{
    failure::Failure,
    moves::{
        self, Answer, Described, Frame, Gone, Hears, Kept, MoveId, Pace, Progress, Request, Says,
        Stage,
    },
    settings::{Layer, Settings, Target, Unit},
    state,
};

/// A move that is under way, or the last one of its volume.
pub(super) struct Leaving {
    id: MoveId,
    begun: Instant,
    progress: Mutex<Progress>,
    cancel: Notify,
    /// It is given up, or the other node may have the volume: too late to cancel.
    is_decided: AtomicBool,
}

/// What moves, and where to.
struct Move {
    settings: Arc<Settings>,
    target: Target,
    served: ServedUnit,
    watched: Arc<Watched>,
    described: Described,
    to: Gln,
    to_node: NodeName,
    addresses: Vec<String>,
    pace: Option<u64>,
}

/// The line to the other node.
struct Line {
    says: Says,
    hears: Hears,
}

/// For commands that have begun to end: hosts give a command 30 s.
const HOLD_WITHIN: Duration = Duration::from_secs(5);
/// For the last of the copy, while hosts wait. What takes longer is given up.
const SWITCH_WITHIN: Duration = Duration::from_secs(10);
/// How often hosts are made to wait: their commands may not end in time.
const SWITCHES: u32 = 3;
/// The most that is left when hosts are made to wait, a tenth of a second of a line of 1 Gbit/s, and the least: a
/// few changed blocks. In between it is what goes in a second.
const LITTLE_BYTES: u64 = 12 << 20;
const LEAST_BYTES: u64 = 512 << 10;
/// Passes before writes of hosts are slowed down, since the copy does not catch up.
const FREE_PASSES: u32 = 4;
/// The most that a write is slowed down.
const MOST_DELAY: Duration = Duration::from_millis(100);
/// Passes after which it never will.
const MOST_PASSES: u32 = 64;
/// Between two attempts to make a record stable.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How often to look whether the other node serves a volume of which something is left here.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Blocks whose allocation is asked for at once.
const ASK_BLOCKS: u64 = 1 << 21;

impl Leaving {
    /// The state of a move that begins.
    fn new(id: MoveId, volume: VolumeName, to: String, left_bytes: u64) -> Self {
        let progress = Progress {
            volume,
            to,
            stage: Stage::Copying,
            copied_bytes: 0,
            left_bytes,
            rate: 0,
            seconds: 0.0,
            pause_seconds: None,
            failure: None,
        };
        Self {
            id,
            begun: Instant::now(),
            progress: Mutex::new(progress),
            cancel: Notify::new(),
            is_decided: AtomicBool::new(false),
        }
    }

    /// How far it is.
    pub(super) fn progress(&self) -> Progress {
        self.progress.lock().clone()
    }

    /// The move, if it is not over.
    pub(super) fn under_way(&self) -> Option<&MoveId> {
        self.progress.lock().stage.is_under_way().then_some(&self.id)
    }

    fn tell(&self, change: impl FnOnce(&mut Progress)) {
        let mut progress = self.progress.lock();
        change(&mut progress);
        progress.seconds = self.begun.elapsed().as_secs_f64();
        progress.rate = (progress.copied_bytes as f64 / progress.seconds.max(0.001)) as u64;
    }
}

impl Node {
    /// Begins to move a volume, named as `gln:NAME`, `NAME` or by its target, to the node with this number or
    /// name; tells how far it is if that has begun already.
    pub async fn move_volume(
        self: &Arc<Self>,
        volume: &str,
        to: &str,
        rate: Option<u64>,
    ) -> Result<Progress, Failure> {
        let _one_at_a_time = self.changing.lock().await;
        let naming = self.naming()?;
        let nodes = naming.find(to).await;
        let [node] = &nodes[..] else {
            let what = if nodes.is_empty() { "no node is" } else { "several nodes are" };
            return Err(Failure::new(format!("{what} known as {to}")).remedy(
                "`forebay names` shows the nodes that are known; name one by its number (GLN)",
            ));
        };
        let (target, unit, served) = self.find_volume(volume).await?;
        let name = unit.volume.clone().ok_or_else(|| unnamed(&target))?;
        // It may be open still, if something kept the settings without it from being put in force.
        if let Some(gone) = self.moves.of(&name).gone {
            return Err(Failure::new(format!("{name} has gone to {}", gone.to_node))
                .remedy("move it from there"));
        }
        if let Some(leaving) = self.leaving(&name).filter(|leaving| leaving.under_way().is_some()) {
            let progress = leaving.progress();
            if progress.to == describe(&node.node, node.gln) {
                return Ok(progress);
            }
            return Err(Failure::new(format!("{name} is being moved to {} already", progress.to))
                .remedy(format!("wait for it, or `forebay volume cancel {name}`")));
        }
        let me = naming.gln();
        if node.gln == me {
            return Err(Failure::new(format!("{name} is on that node already")));
        }
        if node.stale || node.twins || node.addresses.is_empty() {
            let message =
                format!("the node {} gives no sign of life, or cannot be asked", node.node);
            return Err(Failure::new(message).remedy("`forebay names` shows what is known of it"));
        }
        let watched = movable(&target, &unit, &served)?;
        let described = Described::new(&target, &unit, &served.serial, &**watched.below());
        let described = described.ok_or_else(|| unnamed(&target))?;
        let to = describe(&node.node, node.gln);
        let leaving =
            Arc::new(Leaving::new(MoveId::random()?, name.clone(), to, described.bytes()));
        self.moving.lock().leaving.insert(name, Arc::clone(&leaving));
        let moved = Move {
            settings: self.settings(),
            target,
            served,
            watched,
            described,
            to: node.gln,
            to_node: node.node.clone(),
            addresses: node.addresses.clone(),
            pace: rate,
        };
        let progress = leaving.progress();
        let node = Arc::clone(self);
        tokio::spawn(async move { node.leave(&leaving, moved).await });
        Ok(progress)
    }

    /// How far the move of a volume is, or how the last one ended.
    pub fn move_of(&self, volume: &VolumeName) -> Result<Progress, Failure> {
        let leaving = self.leaving(volume);
        leaving.map(|leaving| leaving.progress()).ok_or_else(|| {
            Failure::new(format!("no move of {volume} has begun here since the start"))
                .remedy("`forebay volume list` shows what is known of moves")
        })
    }

    /// Gives up a move.
    pub async fn cancel_move(&self, volume: &VolumeName) -> Result<Progress, Failure> {
        let leaving = self.leaving(volume).filter(|leaving| leaving.under_way().is_some());
        let leaving = leaving.ok_or_else(|| {
            Failure::new(format!("{volume} is not being moved from here"))
                .remedy("`forebay volume list` shows what is known of moves")
        })?;
        if leaving.is_decided.load(Ordering::Acquire) {
            return Err(Failure::new(format!("{volume} is being handed over at this moment")));
        }
        leaving.cancel.notify_one();
        while leaving.under_way().is_some() {
            sleep(Duration::from_millis(10)).await;
        }
        Ok(leaving.progress())
    }

    fn leaving(&self, volume: &VolumeName) -> Option<Arc<Leaving>> {
        self.moving.lock().leaving.get(volume).cloned()
    }

    /// The unit with this volume.
    async fn find_volume(&self, named: &str) -> Result<(Target, Unit, ServedUnit), Failure> {
        let name = named.strip_prefix("gln:").unwrap_or(named);
        let is_it = |target: &Target, unit: &Unit| {
            target.name.0 == named || unit.volume.as_ref().is_some_and(|v| v.as_str() == name)
        };
        let found = {
            let inner = self.inner.lock();
            let targets = inner.settings.target.iter();
            let mut all =
                targets.flat_map(|target| target.unit.iter().map(move |unit| (target, unit)));
            all.find(|(target, unit)| is_it(target, unit)).and_then(|(target, unit)| {
                let served = inner.targets.iter().find(|served| served.name == target.name.0)?;
                let served = served.units.iter().find(|served| served.lun == unit.lun)?;
                Some((target.clone(), unit.clone(), served.clone()))
            })
        };
        if let Some(found) = found {
            return Ok(found);
        }
        let failure = Failure::new(format!("there is no volume {named} here"));
        let place = match name.parse() {
            Ok(volume) => self.naming()?.locate(&volume).await.ok(),
            Err(_) => None,
        };
        Err(match place {
            Some(place) if place.gln != self.naming()?.gln() => failure
                .remedy(format!("it is on the node {} ({}): ask there", place.node, place.gln)),
            _ => failure.remedy("`forebay names` shows the volumes that are known, and where"),
        })
    }

    /// The whole move.
    async fn leave(self: Arc<Self>, leaving: &Leaving, moved: Move) {
        let volume = moved.described.volume.clone();
        tracing::info!(%volume, to = %moved.to_node, "a volume begins to move");
        let left = tokio::select! {
            left = self.leave_to(leaving, &moved) => left,
            // Heard while copying only.
            () = cancelled(leaving) => Err(Failure::new("it was cancelled")),
        };
        moved.watched.unwatch();
        let failure = match left {
            Ok(failure) => {
                tracing::info!(%volume, to = %moved.to_node, "a volume has moved");
                leaving.tell(|progress| (progress.stage, progress.left_bytes) = (Stage::Moved, 0));
                failure
            }
            Err(failure) => {
                tracing::error!(%volume, %failure, "a volume was not moved, and stays");
                leaving.tell(|progress| progress.stage = Stage::Undone);
                Some(failure)
            }
        };
        leaving.tell(|progress| progress.failure = failure);
    }

    /// Up to the point from which the volume is the other's; then what is left to do, if anything.
    async fn leave_to(
        self: &Arc<Self>,
        leaving: &Leaving,
        moved: &Move,
    ) -> Result<Option<Failure>, Failure> {
        // It may take long, and later ones do not.
        moved.watched.below().flush().await.map_err(Failure::new)?;
        let mut line = self.agree(leaving, moved).await?;
        let changes = {
            let held = timeout(HOLD_WITHIN, moved.served.unit.hold()).await;
            let _nothing_under_way = held.map_err(|_| busy(&moved.described.volume))?;
            not_sanitizing(moved)?;
            moved.watched.watch()
        };
        mark_used(moved.watched.below(), &changes).await?;
        leaving.tell(|progress| progress.left_bytes = changes.bytes());
        let mut pace = Pace::new(moved.pace);
        let mut switches = 0;
        loop {
            self.catch_up(leaving, moved, &changes, &mut line, &mut pace).await?;
            switches += 1;
            match self.switch(leaving, moved, &changes, &mut line).await {
                Ok(left) => return Ok(left),
                Err(Switch::Later(_)) if switches < SWITCHES => {
                    leaving.tell(|progress| progress.stage = Stage::Copying);
                }
                Err(Switch::Later(failure) | Switch::Never(failure)) => return Err(failure),
            }
        }
    }

    /// Asks the other node to take it.
    async fn agree(&self, leaving: &Leaving, moved: &Move) -> Result<Line, Failure> {
        let naming = self.naming()?;
        let mut last = None;
        for address in &moved.addresses {
            match moves::call(naming.secret(), address).await {
                Ok((says, hears)) => {
                    let mut line = Line { says, hears };
                    let begin = Request::Begin {
                        to: moved.to,
                        from: naming.gln(),
                        from_node: naming.node(),
                        id: leaving.id.clone(),
                        volume: Box::new(moved.described.clone()),
                    };
                    line.ask(begin).await?;
                    return Ok(line);
                }
                Err(error) => last = Some(format!("{address}: {error}")),
            }
        }
        let last = last.unwrap_or_else(|| "it tells of no address".into());
        Err(Failure::new(format!("the node {} cannot be reached: {last}", moved.to_node)).remedy(
            "see that it runs, and that nothing between refuses the port of its naming service",
        ))
    }

    /// Sends what has changed, again and again, until little is left.
    async fn catch_up(
        &self,
        leaving: &Leaving,
        moved: &Move,
        changes: &Changes,
        line: &mut Line,
        pace: &mut Pace,
    ) -> Result<(), Failure> {
        let mut delay = Duration::ZERO;
        for pass in 0..MOST_PASSES {
            let before = changes.bytes();
            line.pass(moved.watched.below(), changes, pace, leaving).await?;
            line.flush(moved.watched.below()).await?;
            let left = changes.bytes();
            leaving.tell(|progress| progress.left_bytes = left);
            let rate = leaving.progress().rate.min(moved.pace.unwrap_or(u64::MAX));
            if left <= rate.clamp(LEAST_BYTES, LITTLE_BYTES) {
                return Ok(());
            }
            // Hosts write as fast as we copy, or faster.
            if pass >= FREE_PASSES && left > before / 2 {
                delay = (delay * 2).clamp(Duration::from_millis(1), MOST_DELAY);
                changes.slow_down(delay);
            }
        }
        let volume = &moved.described.volume;
        Err(Failure::new(format!("hosts write to {volume} faster than it can be copied"))
            .remedy("move it when they write less, or without --rate"))
    }

    /// Hosts wait from here on, until they find the volume at the other node, or here again.
    async fn switch(
        self: &Arc<Self>,
        leaving: &Leaving,
        moved: &Move,
        changes: &Changes,
        line: &mut Line,
    ) -> Result<Option<Failure>, Switch> {
        // Nothing else changes meanwhile: no reload, no growth.
        let one_at_a_time = self.changing.lock().await;
        if !self.is_served(moved) {
            let message = format!("{} was changed while it was copied", moved.described.volume);
            return Err(Switch::Never(Failure::new(message).remedy("move it again")));
        }
        let begun = Instant::now();
        leaving.tell(|progress| progress.stage = Stage::Switching);
        let unit = &moved.served.unit;
        let held = timeout(HOLD_WITHIN, unit.hold()).await;
        let held = held.map_err(|_| Switch::Later(busy(&moved.described.volume)))?;
        not_sanitizing(moved).map_err(Switch::Never)?;
        let last = async {
            changes.settle().await;
            line.pass(moved.watched.below(), changes, &mut Pace::new(None), leaving).await?;
            line.flush(moved.watched.below()).await
        };
        let slow = || Failure::new("the last of the copy takes too long, while hosts wait");
        let last = timeout(SWITCH_WITHIN.saturating_sub(begun.elapsed()), last).await;
        last.map_err(|_| Switch::Never(slow()))?.map_err(Switch::Never)?;
        // From here on hosts find nobody, and try again; who comes in between waits with the rest.
        leaving.is_decided.store(true, Ordering::Release);
        let away =
            target::Target { is_unavailable: true, ..self.shown(&moved.settings, &moved.target) };
        let prepared = match self.server.turn_away(away).await {
            Ok(true) if changes.is_still() => self.prepare_other(moved, line).await,
            Ok(_) => Err(busy(&moved.described.volume)),
            Err(error) => Err(Failure::new(error)),
        };
        let decided = match prepared {
            Ok(redirect) => self.decide(leaving, moved, redirect).await,
            Err(failure) => Err(failure),
        };
        let shown = self.shown(&moved.settings, &moved.target);
        let redirect = match decided {
            Ok(redirect) => Redirect { address: redirect, permanent: false },
            Err(failure) => {
                // Here as before.
                if let Err(error) = self.server.change(shown).await {
                    tracing::error!(%error, "a target that the settings let pass");
                }
                return Err(Switch::Never(failure));
            }
        };
        // Nothing is served here any more before anything is there.
        let gone = target::Target { units: Vec::new(), redirect: Some(redirect), ..shown };
        if let Err(error) = self.server.turn_away(gone).await {
            tracing::error!(%error, "a target that the settings let pass");
        }
        drop(held);
        if let Err(failure) = self.put_moves_in_force().await {
            tracing::error!(%failure, "what is left of a volume that has moved");
        }
        // The other node may be waiting for us with a volume of its own.
        drop(one_at_a_time);
        // If it does not hear of it, it asks.
        let committed = line.ask(Request::Commit).await;
        let failure = committed.err().map(|failure| {
            Failure::new(format!("the node {} does not serve it yet: {failure}", moved.to_node))
                .remedy("it does as soon as it has asked this node what was decided: let both run")
        });
        leaving.tell(|progress| progress.pause_seconds = Some(begun.elapsed().as_secs_f64()));
        match failure {
            None => self.remove_left(&moved.described.volume),
            Some(_) => self.remove_left_later(moved.described.volume.clone()),
        }
        Ok(failure)
    }

    /// Hands over what the unit keeps beside its blocks. Where initiators will be sent.
    async fn prepare_other(&self, moved: &Move, line: &mut Line) -> Result<String, Failure> {
        let unit = &moved.served.unit;
        if let Some(state) = &moved.settings.state {
            let mut records = state::records(state, unit.identity()).map_err(Failure::new)?;
            records.retain(|(name, _)| *name != unit::Record::Reservations.name());
            records.push((unit::Record::Reservations.name(), unit.reservations_to_move()));
            for (name, bytes) in records {
                let frame = Frame::Record { name: name.to_owned(), bytes: bytes.into() };
                line.says.say(&frame).await.map_err(|lost| broken(&lost))?;
            }
        }
        match line.exchange(Request::Prepare).await? {
            Answer::Kept { redirect } => Ok(redirect),
            _ => Err(broken(&"it gives an answer to another question")),
        }
    }

    /// The point from which on the other node is right.
    async fn decide(
        &self,
        leaving: &Leaving,
        moved: &Move,
        redirect: String,
    ) -> Result<String, Failure> {
        let described = &moved.described;
        let gone = Gone {
            id: leaving.id.clone(),
            target: described.target.clone(),
            lun: described.lun,
            generation: described.generation,
            to: moved.to,
            to_node: moved.to_node.clone(),
            redirect: redirect.clone(),
            // One of the operator's stays.
            left: self.moves.of(&described.volume).come.map(|come| come.file),
        };
        let kept = Kept { gone: Some(gone), come: None };
        // A place for it before there is no way back.
        self.moves.try_to_keep(&described.volume, &kept)?;
        while let Err(failure) = self.moves.keep(&described.volume, kept.clone()) {
            // After a crash it might be there or not: neither node serves until it surely is.
            tracing::error!(%failure, "a volume that moves is served by nobody until this is written");
            leaving.tell(|progress| progress.failure = Some(failure));
            sleep(AGAIN_AFTER).await;
        }
        Ok(redirect)
    }

    /// Whether it is the unit that began to move, as large as it was.
    fn is_served(&self, moved: &Move) -> bool {
        let inner = self.inner.lock();
        let served = inner.targets.iter().find(|served| served.name == moved.target.name.0);
        let is_it = |unit: &ServedUnit| Arc::ptr_eq(&unit.unit, &moved.served.unit);
        served.is_some_and(|served| served.units.iter().any(is_it))
            && inner.settings.target.contains(&moved.target)
            && moved.watched.below().geometry().blocks == moved.described.blocks
    }

    /// Deletes what is left here of a volume that the other node serves.
    fn remove_left(&self, volume: &VolumeName) {
        // It may be coming back at this moment, into the same file.
        let Some(_berth) = self.berth(volume) else { return };
        let Kept { gone: Some(gone), come: None } = self.moves.of(volume) else { return };
        let Some(file) = &gone.left else { return };
        let removed = match std::fs::remove_file(file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::new(error)),
            _ => {
                let gone = Some(Gone { left: None, ..gone.clone() });
                self.moves.keep(volume, Kept { gone, come: None })
            }
        };
        if let Err(failure) = removed {
            tracing::warn!(path = %file.display(), %failure, "what is left of a volume that has moved");
        }
    }

    /// The same as soon as the other node tells of it.
    pub(super) fn remove_left_later(self: &Arc<Self>, volume: VolumeName) {
        let node = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                sleep(LOOK_EVERY).await;
                let Some(node) = node.upgrade() else { return };
                let kept = node.moves.of(&volume);
                let (Some(gone), None, Some(naming)) = (kept.gone, kept.come, &node.naming) else {
                    return;
                };
                if gone.left.is_none() {
                    return;
                }
                if naming.locate(&volume).await.is_ok_and(|place| place.gln == gone.to) {
                    return node.remove_left(&volume);
                }
            }
        });
    }
}

/// Why hosts go on here.
enum Switch {
    /// It may work after another pass.
    Later(Failure),
    Never(Failure),
}

impl Line {
    /// Asks for something that is done or not.
    async fn ask(&mut self, request: Request) -> Result<(), Failure> {
        match self.exchange(request).await? {
            Answer::Done => Ok(()),
            _ => Err(broken(&"it gives an answer to another question")),
        }
    }

    /// Makes stable what was sent, and what is here: a disk that has lost what it took says so at a flush only,
    /// and the other node would never tell of it.
    async fn flush(&mut self, volume: &Stack) -> Result<(), Failure> {
        let (here, there) = tokio::join!(volume.flush(), self.ask(Request::Flush));
        here.map_err(Failure::new)?;
        there
    }

    async fn exchange(&mut self, request: Request) -> Result<Answer, Failure> {
        // Who refuses may have hung up: what it said comes first.
        let said = self.says.say(&Frame::Request(request)).await;
        match self.hears.hear().await {
            Ok(Frame::Answer(Answer::Refused(failure))) => Err(failure),
            Ok(Frame::Answer(answer)) => said.map(|()| answer).map_err(|lost| broken(&lost)),
            Ok(_) => Err(broken(&"it gives an answer to another question")),
            Err(lost) => Err(broken(&lost)),
        }
    }

    async fn pass(
        &mut self,
        volume: &Stack,
        changes: &Changes,
        pace: &mut Pace,
        leaving: &Leaving,
    ) -> Result<(), Failure> {
        let sent = |bytes| {
            leaving.tell(|progress| {
                progress.copied_bytes += bytes;
                progress.left_bytes = progress.left_bytes.saturating_sub(bytes);
            });
        };
        let passed = moves::pass(volume, changes, &mut self.says, pace, sent).await;
        match passed {
            Ok(()) => Ok(()),
            // It says why, if it can.
            Err(moves::Broken::Line(lost)) => match self.hears.hear().await {
                Ok(Frame::Answer(Answer::Refused(failure))) => Err(failure),
                _ => Err(broken(&lost)),
            },
            Err(error) => Err(Failure::new(error)),
        }
    }
}

/// Waits for a cancellation that is not too late; one that is, is never heard.
async fn cancelled(leaving: &Leaving) {
    loop {
        leaving.cancel.notified().await;
        if !leaving.is_decided.load(Ordering::Acquire) {
            return;
        }
    }
}

/// Marks what takes space: the rest is zeros at both ends.
async fn mark_used(volume: &Stack, changes: &Changes) -> Result<(), Failure> {
    let blocks = volume.geometry().blocks;
    let mut at = 0;
    while at < blocks {
        let extent = Extent { lba: Lba(at), blocks: (blocks - at).min(ASK_BLOCKS) as u32 };
        let allocation = volume.allocation(extent).await.map_err(Failure::new)?;
        for run in allocation.runs() {
            if run.mapped {
                changes.mark(at..at + u64::from(run.blocks));
            }
            at += u64::from(run.blocks);
        }
        if allocation.blocks() == 0 {
            changes.mark(at..extent.end().0);
            at = extent.end().0;
        }
    }
    Ok(())
}

/// Whether it can be moved at all; who tells of its changes.
fn movable(target: &Target, unit: &Unit, served: &ServedUnit) -> Result<Arc<Watched>, Failure> {
    let name = &target.name;
    let refused = |what: &str, remedy: &str| {
        Err(Failure::new(format!("{name} cannot be moved: {what}")).remedy(remedy))
    };
    if target.unit.len() != 1 {
        return refused("it has several units", "give the volume a target of its own, and restart");
    }
    for layer in &unit.stack {
        match layer {
            Layer::File(file) if file.read_only => {
                return refused("it is read-only", "let it be written before it moves");
            }
            Layer::Memory(_) | Layer::File(_) | Layer::Slice(_) | Layer::Delay(_) => {}
            Layer::Observe(_) | Layer::Fault(_) => {}
            Layer::ReadOnly => {
                return refused("it is read-only", "let it be written before it moves");
            }
            Layer::Encrypt(_) => {
                return refused(
                    "it is encrypted, and its key does not leave the node",
                    "copy it at a host to an encrypted volume of the other node",
                );
            }
            Layer::Cache(_) | Layer::CommonCache(_) => {
                return refused(
                    "it has a cache",
                    "stop it, and serve it without; or move the volume below",
                );
            }
            Layer::Remote(_) | Layer::Half(_) => {
                return refused("its blocks are elsewhere", "ask the node that has them");
            }
        }
    }
    if !served.unit.sharers().is_empty() {
        return refused(
            "several gateways share it",
            "stop those gateways, and start them after the move",
        );
    }
    if served.unit.is_sanitizing() {
        return refused("it is being sanitized", "wait until that is done");
    }
    served.opened.watched.clone().ok_or_else(|| unnamed(target))
}

/// A sanitize goes on behind its command, and nothing holds it up: one that has begun since it was asked for last.
fn not_sanitizing(moved: &Move) -> Result<(), Failure> {
    match moved.served.unit.is_sanitizing() {
        true => Err(Failure::new(format!("{} is being sanitized", moved.described.volume))
            .remedy("wait until that is done")),
        false => Ok(()),
    }
}

fn unnamed(target: &Target) -> Failure {
    Failure::new(format!("the volume of {} has no name", target.name)).remedy(
        "add `volume = \"NAME\"` to its unit, and restart: by that others find it where it goes",
    )
}

fn busy(volume: &VolumeName) -> Failure {
    Failure::new(format!("commands of hosts on {volume} do not end"))
        .remedy("see what its disk does (`forebay status`), and move it again")
}

fn broken(why: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("the other node: {why}"))
        .remedy("see that it runs, and look at its events; then move the volume again")
}

/// A node as it is told.
fn describe(node: &NodeName, gln: Gln) -> String {
    format!("{node} ({gln})")
}
