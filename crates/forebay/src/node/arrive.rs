//! A volume comes to this node: a copy grows in a file of its own, becomes whole, and is served when the node
//! that it comes from has decided so. Whoever is in doubt asks that node, as long as it takes.

use std::{path::Path, sync::Arc, time::Duration};

use ::names::{Gln, NodeName, VolumeName};
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{net::TcpStream, time::timeout};
use volume::{Data, Durability, Error, Extent, FileVolume, Lba, Volume};

use super::Node;
use crate::{
    failure::Failure,
    moves::{
        self, Answer, Come, CopyStage, Described, Fate, Frame, HELLO_BYTES, Hears, Kept, Lost,
        MoveId, Request, Says,
    },
    plan::Plan,
    quantity::{Size, about},
    settings::{File, Settings, Target},
    stack, state,
};

/// Pieces that are written at once.
const WRITES: usize = 8;
/// Bytes that are written without a flush: what a slow disk takes within the patience of the other node.
const MOST_UNFLUSHED: u64 = 256 << 20;
/// Bytes of records that a unit keeps, all together.
const MOST_RECORDS: usize = 4 << 20;
/// For the first word of who connects, who may be a stranger and has one of the places of all who do.
const FIRST_WORD_WITHIN: Duration = Duration::from_secs(5);
/// How often the node that a volume comes from is asked what it has decided.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// What is known of a volume that is asked to be taken.
struct Offer {
    from: Gln,
    from_node: NodeName,
    id: MoveId,
    volume: Described,
}

/// The file of a copy that grows.
struct Copy {
    file: Arc<FileVolume>,
    writes: FuturesUnordered<BoxFuture<'static, Result<(), Error>>>,
    records: Vec<(String, Vec<u8>)>,
    /// Bytes since the last flush.
    unflushed: u64,
}

/// The volume's place among those that arrive, until it is dropped.
pub(super) struct Berth<'a>(&'a Node, VolumeName);

impl Drop for Berth<'_> {
    fn drop(&mut self) {
        self.0.moving.lock().arriving.remove(&self.1);
    }
}

impl Node {
    /// Takes connections about moves, goes on with what was not over when the process ended, and throws away what
    /// was not whole then.
    pub(super) fn open_moves(self: &Arc<Self>) {
        let Some(naming) = &self.naming else { return };
        for (volume, kept) in self.moves.all() {
            match kept.come {
                Some(come) if come.stage == CopyStage::Arriving => self.discard(&volume, &come.id),
                Some(come) if come.stage == CopyStage::Ready => self.ask_for_fate(volume, come),
                Some(_) => {}
                None => self.remove_left_later(volume),
            }
        }
        let node = Arc::downgrade(self);
        naming.visited_by(Box::new(move |stream, hello| {
            let node = node.upgrade();
            Box::pin(async move {
                if let Some(node) = node {
                    node.visit(stream, &hello).await;
                }
            })
        }));
    }

    /// Somebody has connected who is not asking for names.
    async fn visit(self: &Arc<Self>, stream: TcpStream, hello: &[u8; HELLO_BYTES]) {
        let Some(naming) = &self.naming else { return };
        let visited = async {
            let (mut says, mut hears) = moves::respond(naming.secret(), stream, hello).await?;
            let first = timeout(FIRST_WORD_WITHIN, hears.hear()).await;
            match first.map_err(|_| Lost::TimedOut)?? {
                Frame::Request(Request::Ask { to, id, volume }) if to == naming.gln() => {
                    let fate = self.fate(&volume, &id);
                    says.say(&Frame::Answer(Answer::Fate(fate))).await
                }
                Frame::Request(Request::Begin { to, from, from_node, id, volume })
                    if to == naming.gln() =>
                {
                    let offer = Offer { from, from_node, id, volume: *volume };
                    self.arrive(offer, &mut says, &mut hears).await
                }
                // Whoever had this address before has another number.
                Frame::Request(Request::Ask { .. } | Request::Begin { .. }) => {
                    let failure = Failure::new(format!("this is the node {}", naming.gln()))
                        .remedy("try again when its record has come round (`forebay names`)");
                    says.say(&Frame::Answer(Answer::Refused(failure))).await
                }
                _ => Err(Lost::Payload),
            }
        };
        if let Err(error) = visited.await {
            tracing::warn!(%error, "a conversation about a volume that moves has ended");
        }
    }

    /// What has become of a move from here.
    fn fate(&self, volume: &VolumeName, id: &MoveId) -> Fate {
        // In this order: what has ended since is in the record.
        let leaving = self.moving.lock().leaving.get(volume).cloned();
        if leaving.is_some_and(|leaving| leaving.under_way() == Some(id)) {
            return Fate::Undecided;
        }
        match self.moves.of(volume).gone {
            Some(gone) if gone.id == *id => Fate::Yours,
            _ => Fate::Undone,
        }
    }

    /// Takes a volume, if it may come.
    async fn arrive(
        self: &Arc<Self>,
        offer: Offer,
        says: &mut Says,
        hears: &mut Hears,
    ) -> Result<(), Lost> {
        let name = offer.volume.volume.clone();
        let refuse = |failure| Frame::Answer(Answer::Refused(failure));
        let Some(berth) = self.berth(&name) else {
            let failure = Failure::new(format!("{name} is coming to this node already"))
                .remedy("wait until that has ended; the end of a lost connection takes a minute");
            return says.say(&refuse(failure)).await;
        };
        let (come, mut copy) = match self.begin(offer).await {
            Ok(begun) => begun,
            Err(failure) => {
                tracing::warn!(volume = %name, %failure, "a volume is not taken");
                return says.say(&refuse(failure)).await;
            }
        };
        tracing::info!(volume = %name, from = %come.from_node, bytes = come.volume.bytes(), "a volume comes");
        let prepared = async {
            says.say(&Frame::Answer(Answer::Done)).await.map_err(Failure::new)?;
            self.receive(&mut copy, says, hears).await?;
            self.prepare_here(&name, &come, copy).await
        };
        let redirect = match prepared.await {
            Ok(redirect) => redirect,
            Err(failure) => {
                tracing::warn!(volume = %name, %failure, "a volume has not come");
                self.discard(&name, &come.id);
                return says.say(&refuse(failure)).await;
            }
        };
        drop(berth);
        // Whatever becomes of the line: the other node decides, and is asked.
        let kept = says.say(&Frame::Answer(Answer::Kept { redirect })).await;
        let committed = match kept {
            Ok(()) => matches!(hears.hear().await, Ok(Frame::Request(Request::Commit))),
            Err(_) => false,
        };
        let is_taken = match self.berth(&name).filter(|_| committed) {
            Some(_berth) => self.take(&name, &come).await,
            None => false,
        };
        if !is_taken {
            self.ask_for_fate(name, come);
            return Ok(());
        }
        says.say(&Frame::Answer(Answer::Done)).await
    }

    /// Whether it may come, and the file for it.
    async fn begin(&self, offer: Offer) -> Result<(Come, Copy), Failure> {
        let Offer { from, from_node, id, volume } = offer;
        volume.check()?;
        let (settings, base) = {
            let inner = self.inner.lock();
            (Arc::clone(&inner.settings), Arc::clone(&inner.base))
        };
        let (Some(accept), Some(state)) = (&base.accept, &base.state) else {
            return Err(Failure::new("the node takes no volumes").remedy(
                "add an [accept] table with `folder` and `size` to its settings, and reload",
            ));
        };
        let name = &volume.volume;
        let kept = self.moves.of(name);
        match &kept.come {
            // It decides, and has decided to begin anew; unless it said so before that copy began, and the line
            // kept it: what is whole is thrown away on its word only.
            Some(come) if come.stage != CopyStage::Here && come.from == from => {
                if come.stage == CopyStage::Ready && self.fate_of(name, come).await != Fate::Undone
                {
                    return Err(Failure::new(format!(
                        "a whole copy of {name} is on the node, and {} does not say that it is not the volume",
                        come.from_node
                    ))
                    .remedy("try again when both nodes know each other (`forebay names`)"));
                }
                self.discard(name, &come.id);
            }
            Some(come) if come.stage != CopyStage::Here => {
                return Err(Failure::new(format!(
                    "{name} is coming to the node from {} already",
                    come.from_node
                ))
                .remedy("let that node run: it decides what becomes of that"));
            }
            _ => {}
        }
        free_of(&settings, &volume)?;
        // The settings may name its target, and then they say who may log in to it.
        let is_its = |target: &&Target| target.name.0 == volume.target;
        let named = base.target.iter().find(is_its);
        let is_open = accept.allow.is_none() || named.is_some_and(|named| named.allow.is_none());
        if volume.is_guarded && is_open {
            return Err(Failure::new(format!(
                "only some may log in to {} where it is, and everybody could on the node",
                volume.target
            ))
            .remedy("say in `allow` of its [accept] table who may, and of the target if it is named there, and reload"));
        }
        self.has_room(accept.size, &accept.folder, &volume)?;
        self.redirect_for(&volume)?;
        // Another unit of this serial number would have its files.
        state::StateFiles::open(state, &volume.identity()).map_err(Failure::new)?;
        let file = accept.folder.join(format!("{name}.img"));
        // What was left of it here, before it came back.
        let is_left = kept.gone.as_ref().is_some_and(|gone| gone.left.as_ref() == Some(&file));
        if file.exists() && !is_left {
            return Err(Failure::new(format!("{} is there already", file.display()))
                .remedy("look what it is, and put it away"));
        }
        let come =
            Come { id, stage: CopyStage::Arriving, from, from_node, file, volume: volume.clone() };
        std::fs::create_dir_all(&accept.folder).map_err(|error| no_file(&accept.folder, &error))?;
        self.moves.keep(name, Kept { come: Some(come.clone()), gone: kept.gone })?;
        match std::fs::remove_file(&come.file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                self.discard(name, &come.id);
                return Err(no_file(&come.file, &error));
            }
            _ => {}
        }
        let settings = File {
            path: come.file.clone(),
            size: Some(Size(volume.bytes())),
            block_size: Size(u64::from(volume.block_size)),
            ..File::default()
        };
        match stack::open_file(stack::options(&settings)).await {
            Ok(file) => {
                let file = Arc::new(file);
                let (writes, records) = (FuturesUnordered::new(), Vec::new());
                Ok((come, Copy { file, writes, records, unflushed: 0 }))
            }
            Err(failure) => {
                self.discard(name, &come.id);
                Err(failure)
            }
        }
    }

    /// What the settings let in, and what the disk has.
    fn has_room(&self, most: Size, folder: &Path, volume: &Described) -> Result<(), Failure> {
        let all = self.moves.all();
        let come = all.iter().filter_map(|(_, kept)| kept.come.as_ref());
        let taken: u64 = come.map(|come| come.volume.bytes()).sum();
        if taken.saturating_add(volume.bytes()) > most.0 {
            return Err(Failure::new(format!(
                "the node takes {} of volumes that are moved to it, {} are taken, and {} has {}",
                about(most.0),
                about(taken),
                volume.volume,
                about(volume.bytes())
            ))
            .remedy("raise `size` of its [accept] table, and reload"));
        }
        std::fs::create_dir_all(folder).map_err(|error| no_file(folder, &error))?;
        let free = rustix::fs::statvfs(folder).map_err(|error| no_file(folder, &error.into()))?;
        let free = free.f_bavail.saturating_mul(free.f_frsize);
        if free < volume.used_bytes {
            return Err(Failure::new(format!(
                "{} has {} free, and {} needs {}",
                folder.display(),
                about(free),
                volume.volume,
                about(volume.used_bytes)
            ))
            .remedy("make room there, or name another `folder` in [accept]"));
        }
        Ok(())
    }

    /// Where initiators will find it.
    fn redirect_for(&self, volume: &Described) -> Result<String, Failure> {
        let inner = self.inner.lock();
        let base = Arc::clone(&inner.base);
        let is_its = |target: &&Target| target.name.0 == volume.target;
        let new = volume.served(Default::default(), None);
        let target = base.target.iter().find(is_its).unwrap_or(&new);
        let portals = match &base.names {
            Some(names) => inner.portals_of(target, &base.groups(), names),
            None => Vec::new(),
        };
        let first = portals.iter().find(|portal| !portal.tls).or(portals.first());
        first.map(|portal| portal.address.clone()).ok_or_else(|| {
            Failure::new("the node has no portal that others could be sent to")
                .remedy("add one to its `listen`, and `host` to its [names] if that is 0.0.0.0")
        })
    }

    /// Blocks and records until all are there.
    async fn receive(
        &self,
        copy: &mut Copy,
        says: &mut Says,
        hears: &mut Hears,
    ) -> Result<(), Failure> {
        loop {
            match hears.hear().await.map_err(Failure::new)? {
                Frame::Write { lba, data } => copy.write(lba, Data::from(data)).await?,
                Frame::Zeros { lba, blocks } => copy.discard(lba, blocks).await?,
                Frame::Record { name, bytes } => copy.keep(name, bytes.to_vec())?,
                Frame::Request(Request::Flush) => {
                    copy.flush().await?;
                    says.say(&Frame::Answer(Answer::Done)).await.map_err(Failure::new)?;
                }
                Frame::Request(Request::Prepare) => return copy.flush().await,
                Frame::Request(_) | Frame::Answer(_) => return Err(Failure::new(Lost::Payload)),
            }
        }
    }

    /// It is whole. From here on the other node decides.
    async fn prepare_here(
        &self,
        name: &VolumeName,
        come: &Come,
        copy: Copy,
    ) -> Result<String, Failure> {
        let Copy { file, writes, records, .. } = copy;
        // The unit opens it anew.
        drop((writes, file));
        let redirect = self.redirect_for(&come.volume)?;
        let state = self.settings().state.clone().ok_or_else(|| Failure::new("no state folder"))?;
        let identity = come.volume.identity();
        let kept = tokio::task::spawn_blocking(move || {
            state::replace_records(&state, &identity, &records)
        });
        kept.await.map_err(Failure::new)?.map_err(Failure::new)?;
        let gone = self.moves.of(name).gone;
        let ready = Come { stage: CopyStage::Ready, ..come.clone() };
        self.moves.keep(name, Kept { come: Some(ready), gone })?;
        // Who is sent here before we hear of it is to try again.
        // Whoever changes something now may be waiting for that node.
        if let Ok(_one_at_a_time) = self.changing.try_lock()
            && let Err(failure) = self.put_moves_in_force().await
        {
            tracing::error!(volume = %name, %failure, "a volume that has come is not shown as such");
        }
        Ok(redirect)
    }

    /// Takes the volume's place, in which one at a time decides what becomes of a copy of it.
    pub(super) fn berth(&self, name: &VolumeName) -> Option<Berth<'_>> {
        let is_free = self.moving.lock().arriving.insert(name.clone());
        is_free.then(|| Berth(self, name.clone()))
    }

    /// It is ours: served from now on, and told of. False if it cannot be yet.
    async fn take(&self, name: &VolumeName, come: &Come) -> bool {
        let _one_at_a_time = self.changing.lock().await;
        if !self.is_current(name, &come.id) {
            return false;
        }
        let here = Come { stage: CopyStage::Here, ..come.clone() };
        let taken = match self.moves.keep(name, Kept { come: Some(here), gone: None }) {
            Ok(()) => self.put_moves_in_force().await,
            Err(failure) => Err(failure),
        };
        match &taken {
            Ok(()) => {
                tracing::info!(volume = %name, from = %come.from_node, "a volume has come, and is served")
            }
            Err(failure) => {
                tracing::error!(volume = %name, %failure, "a volume has come, and cannot be served yet")
            }
        }
        taken.is_ok()
    }

    /// Whether it is this move by which the volume comes, or came.
    fn is_current(&self, name: &VolumeName, id: &MoveId) -> bool {
        self.moves.of(name).come.is_some_and(|come| come.id == *id)
    }

    /// Asks the node that the volume comes from until it has decided.
    fn ask_for_fate(self: &Arc<Self>, name: VolumeName, come: Come) {
        let node = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut is_told = false;
            loop {
                let Some(node) = node.upgrade() else { return };
                // Another move of it may have begun meanwhile.
                if !node.is_current(&name, &come.id) {
                    return;
                }
                let fate = node.fate_of(&name, &come).await;
                match (fate, node.berth(&name)) {
                    (Fate::Yours, Some(_berth)) if node.take(&name, &come).await => return,
                    (Fate::Undone, Some(_berth)) => {
                        tracing::info!(volume = %name, "the node that it comes from has kept it");
                        node.discard(&name, &come.id);
                        let _one_at_a_time = node.changing.lock().await;
                        if let Err(failure) = node.put_moves_in_force().await {
                            tracing::error!(volume = %name, %failure, "a target that nobody has");
                        }
                        return;
                    }
                    _ => {}
                }
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(volume = %name, from = %come.from_node, "whose the volume is, that node decides: it is asked");
                }
                drop(node);
                tokio::time::sleep(ASK_EVERY).await;
            }
        });
    }

    /// What the node that it comes from says; that it has not decided, if it says nothing.
    async fn fate_of(&self, name: &VolumeName, come: &Come) -> Fate {
        if self.moves.of(name).come.is_some_and(|now| now.stage == CopyStage::Here) {
            return Fate::Yours;
        }
        let Some(naming) = &self.naming else { return Fate::Undecided };
        let mut nodes = naming.find(&come.from.to_string()).await;
        // A copy of it knows what it knew once.
        nodes.retain(|node| !node.twins);
        for address in nodes.iter().flat_map(|node| &node.addresses) {
            let asking = async {
                let (mut says, mut hears) = moves::call(naming.secret(), address).await?;
                let (id, volume) = (come.id.clone(), name.clone());
                says.say(&Frame::Request(Request::Ask { to: come.from, id, volume })).await?;
                hears.hear().await
            };
            // Only who has its number answers.
            if let Ok(Frame::Answer(Answer::Fate(fate))) = asking.await {
                return fate;
            }
        }
        Fate::Undecided
    }

    /// Throws the copy of a move away that is not the volume.
    fn discard(&self, name: &VolumeName, id: &MoveId) {
        let Kept { gone, come } = self.moves.of(name);
        let come = come.filter(|come| come.id == *id && come.stage != CopyStage::Here);
        let Some(come) = come else { return };
        let removed = match std::fs::remove_file(&come.file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(no_file(&come.file, &error))
            }
            _ => self.moves.keep(name, Kept { gone, come: None }),
        };
        if let Err(failure) = removed {
            tracing::warn!(volume = %name, %failure, "a copy that is not needed stays");
        }
    }

    /// Serves what has come, and no more what has gone. One at a time.
    pub(super) async fn put_moves_in_force(&self) -> Result<(), Failure> {
        let (old, base) = {
            let inner = self.inner.lock();
            (Arc::clone(&inner.settings), Arc::clone(&inner.base))
        };
        let mut new = (*base).clone();
        self.moves.apply(&mut new)?;
        let plan = Plan::between(&old, &new);
        if let [why, ..] = &plan.changes.refused[..] {
            return Err(Failure::new(why));
        }
        self.change_to(&plan, &new, &base).await
    }
}

impl Copy {
    /// Blocks that were sent. Those of one pass do not overlap, and between two there is a flush.
    async fn write(&mut self, lba: u64, data: Data) -> Result<(), Failure> {
        self.file.geometry().check_write(Lba(lba), data.len()).map_err(Failure::new)?;
        if data.is_empty() {
            return Err(Failure::new(Lost::Payload));
        }
        self.unflushed += data.len() as u64;
        if self.unflushed > MOST_UNFLUSHED {
            self.flush().await?;
        }
        let file = Arc::clone(&self.file);
        let write = async move { file.write(Lba(lba), data, Durability::Volatile).await };
        self.begin(Box::pin(write)).await
    }

    async fn discard(&mut self, lba: u64, blocks: u32) -> Result<(), Failure> {
        let extent = Extent { lba: Lba(lba), blocks };
        self.file.geometry().check_discard(extent).map_err(Failure::new)?;
        let file = Arc::clone(&self.file);
        self.begin(Box::pin(async move { file.discard(extent).await })).await
    }

    async fn begin(&mut self, write: BoxFuture<'static, Result<(), Error>>) -> Result<(), Failure> {
        self.writes.push(write);
        while self.writes.len() >= WRITES {
            self.one_ends().await?;
        }
        Ok(())
    }

    async fn one_ends(&mut self) -> Result<(), Failure> {
        match self.writes.next().await {
            Some(Err(error)) => Err(Failure::new(format!("the copy cannot be written: {error}"))
                .remedy("see to the disk under `folder` of [accept]")),
            Some(Ok(())) | None => Ok(()),
        }
    }

    async fn flush(&mut self) -> Result<(), Failure> {
        while !self.writes.is_empty() {
            self.one_ends().await?;
        }
        self.unflushed = 0;
        self.file.flush().await.map_err(Failure::new)
    }

    fn keep(&mut self, name: String, bytes: Vec<u8>) -> Result<(), Failure> {
        let kept: usize = self.records.iter().map(|(_, bytes)| bytes.len()).sum();
        let is_known = unit::Record::ALL.iter().any(|record| record.name() == name);
        if !is_known
            || kept + bytes.len() > MOST_RECORDS
            || self.records.len() >= unit::Record::ALL.len()
        {
            return Err(Failure::new(format!("the unit keeps something unknown here ({name})"))
                .remedy("use the same version of forebay on both nodes"));
        }
        self.records.push((name, bytes));
        Ok(())
    }
}

/// That no unit here has its names.
fn free_of(settings: &Settings, volume: &Described) -> Result<(), Failure> {
    for target in &settings.target {
        if target.unit.iter().any(|unit| unit.volume.as_ref() == Some(&volume.volume)) {
            return Err(Failure::new(format!("the node has a volume {} already", volume.volume))
                .remedy("take it out of its settings, or move another"));
        }
        if target.name.0 == volume.target && !target.unit.is_empty() {
            return Err(Failure::new(format!("the node has a target {} already", volume.target))
                .remedy("give one of the two another name"));
        }
    }
    Ok(())
}

fn no_file(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
        .remedy("let the user who serves write the `folder` of [accept]")
}
