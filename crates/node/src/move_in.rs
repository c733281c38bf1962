//! Receives a volume from another node. The copy is written to a file of its own. When the copy is complete, the source
//! node decides whether the move succeeds; if so, this node serves the volume. As long as this node does not know the
//! decision, it asks the source node for it.

use std::{sync::Arc, time::Duration};

use ::names::VolumeName;
use control::Failure;
use stack::{records::Records, unit_state};
use tokio::{net::TcpStream, time::timeout};
use transport::ConnectionPermit;
use volume::Data;

use super::{Node, copy_in::Copy, move_accept::MoveOffer};
use crate::moves::{
    self, Come, CopyStage, HELLO_BYTES, Hears, MoveChannelError, MoveFrame, MoveOutcome,
    MoveRequest, MoveResponse, Says, VolumeMoveRecord,
};

/// Time-out of the first request. The peer may be unauthorized, and uses one of the permits of all connections.
const FIRST_WORD_WITHIN: Duration = Duration::from_secs(5);

/// Maximum number of volumes that are received at once. Each uses one of the 64 permits of naming connections for its
/// whole duration.
const MOST_ARRIVING: usize = 16;

/// Interval at which the destination asks the source node for the outcome of a move.
const ASK_EVERY: Duration = Duration::from_secs(2);

impl Node {
    /// Accepts connections about moves, continues moves that were not decided when the process ended, and discards
    /// copies that were incomplete then.
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
        naming.visited_by(Box::new(move |stream, hello, place| {
            let node = node.upgrade();
            Box::pin(async move {
                if let Some(node) = node {
                    node.visit(stream, &hello, &place).await;
                }
            })
        }));
    }

    /// Handles a connection at the naming port that carries messages about moves instead of names.
    async fn visit(
        self: &Arc<Self>,
        stream: TcpStream,
        hello: &[u8; HELLO_BYTES],
        place: &ConnectionPermit,
    ) {
        let Some(naming) = &self.naming else { return };
        let visited = async {
            let (mut says, mut hears) = moves::respond(naming.secret(), stream, hello).await?;
            let first = timeout(FIRST_WORD_WITHIN, hears.hear()).await;
            let first = first.map_err(|_| MoveChannelError::TimedOut)??;
            if !place.keep() {
                return Ok(()); // the connection is being closed
            }
            match first {
                MoveFrame::Request(MoveRequest::Ask { to, id, volume }) if to == naming.gln() => {
                    let fate = self.fate(&volume, &id);
                    says.say(&MoveFrame::Answer(MoveResponse::Fate(fate))).await
                }
                MoveFrame::Request(MoveRequest::Begin { to, from, from_node, id, volume })
                    if to == naming.gln() =>
                {
                    let offer = MoveOffer { from, from_node, id, volume: *volume };
                    self.arrive(offer, &mut says, &mut hears).await
                }
                // Another node had this address before, and the peer still wants to reach that node.
                MoveFrame::Request(MoveRequest::Ask { .. } | MoveRequest::Begin { .. }) => {
                    let failure = Failure::new(format!("this is the node {}", naming.gln()))
                        .remedy("try again when its record has been propagated (`forebay names`)");
                    says.say(&MoveFrame::Answer(MoveResponse::Refused(failure))).await
                }
                _ => Err(MoveChannelError::Payload),
            }
        };
        if let Err(error) = visited.await {
            tracing::warn!(
                %error,
                remedy = "nothing has to be done: `forebay volume list` shows the state; repeat the \
                 move at the node that has the volume",
                "the connection of a move has ended"
            );
        }
    }

    /// Receives a volume that another node moves here, if this node accepts it.
    async fn arrive(
        self: &Arc<Self>,
        offer: MoveOffer,
        says: &mut Says,
        hears: &mut Hears,
    ) -> Result<(), MoveChannelError> {
        let name = offer.volume.volume.clone();
        let refuse = |failure| MoveFrame::Answer(MoveResponse::Refused(failure));
        let Some(berth) = self.berth(&name) else {
            let failure = Failure::new(format!("{name} is already being moved to this node"))
                .remedy("wait for the end of that move; after a lost connection it takes a minute");
            return says.say(&refuse(failure)).await;
        };
        if self.moving.lock().arriving.len() > MOST_ARRIVING {
            let failure = Failure::new(format!(
                "{MOST_ARRIVING} volumes are already being moved to the node"
            ))
            .remedy("wait until one of them has arrived");
            return says.say(&refuse(failure)).await;
        }
        let (come, mut copy) = match self.begin(offer).await {
            Ok(begun) => begun,
            Err(failure) => {
                tracing::warn!(volume = %name, %failure, "a volume is not accepted");
                return says.say(&refuse(failure)).await;
            }
        };
        tracing::info!(volume = %name, from = %come.from_node, bytes = come.volume.bytes(), "a volume is being moved here");
        let prepared = async {
            says.say(&MoveFrame::Answer(MoveResponse::Done)).await.map_err(Failure::new)?;
            self.receive(&mut copy, says, hears).await?;
            self.prepare_here(&name, &come, copy).await
        };
        let redirect = match prepared.await {
            Ok(redirect) => redirect,
            Err(failure) => {
                tracing::warn!(volume = %name, %failure, "the move of a volume to this node failed");
                self.discard(&name, &come.id);
                return says.say(&refuse(failure)).await;
            }
        };
        drop(berth);
        // Ignore an error: the source node decides from now on. If the connection is lost, this node asks for the
        // decision later.
        let kept = says.say(&MoveFrame::Answer(MoveResponse::Kept { redirect })).await;
        let committed = match kept {
            Ok(()) => matches!(hears.hear().await, Ok(MoveFrame::Request(MoveRequest::Commit))),
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
        says.say(&MoveFrame::Answer(MoveResponse::Done)).await
    }

    /// Receives blocks and state records from the source node until the copy is complete.
    async fn receive(
        &self,
        copy: &mut Copy,
        says: &mut Says,
        hears: &mut Hears,
    ) -> Result<(), Failure> {
        loop {
            match hears.hear().await.map_err(Failure::new)? {
                MoveFrame::Write { lba, data } => copy.write(lba, Data::from(data)).await?,
                MoveFrame::Zeros { lba, blocks } => copy.discard(lba, blocks).await?,
                MoveFrame::Record { name, bytes } => copy.keep(name, bytes.to_vec())?,
                MoveFrame::Request(MoveRequest::Flush) => {
                    copy.flush().await?;
                    says.say(&MoveFrame::Answer(MoveResponse::Done)).await.map_err(Failure::new)?;
                }
                MoveFrame::Request(MoveRequest::Prepare) => return copy.flush().await,
                MoveFrame::Request(_) | MoveFrame::Answer(_) => {
                    return Err(Failure::new(MoveChannelError::Payload));
                }
            }
        }
    }

    /// Makes the complete copy stable. From then on, only the source node decides whether the move takes place.
    async fn prepare_here(
        &self,
        name: &VolumeName,
        come: &Come,
        copy: Copy,
    ) -> Result<String, Failure> {
        let Copy { file, writes, records, .. } = copy;
        drop(writes);
        // Check the access rules again: a reload may have changed them while the copy was received.
        self.check_access(&come.volume)?;
        let redirect = self.redirect_for(&come.volume)?;
        // Write the record of the file now: it may become the only copy, and with the record no start creates an empty
        // file in its place.
        let unit = format!("{}/{}", come.volume.target, come.volume.lun);
        let recorder = Records::of(&self.settings()).recorder(unit);
        recorder.look_at_volume(&come.file).map_err(Failure::from)?.keep(&file)?;
        // Close the file of the copy, because the unit opens it again.
        drop(file);
        let state = self.settings().state.clone().ok_or_else(|| {
            Failure::new("there is no state folder")
                .remedy("name a folder with `state` in the settings, and restart")
        })?;
        let identity = come.volume.identity();
        let kept = tokio::task::spawn_blocking(move || {
            unit_state::replace_records(&state, &identity, &records)
        });
        kept.await.map_err(Failure::new)?.map_err(Failure::new)?;
        let ready = Come { stage: CopyStage::Ready, ..come.clone() };
        self.moves.keep(name, VolumeMoveRecord { come: Some(ready), ..self.moves.of(name) })?;
        // Show the target now: an initiator that is redirected before the commit arrives here then gets "service
        // unavailable" and tries again. Do not wait for the lock: its holder may be waiting for the source node.
        if let Ok(_one_at_a_time) = self.changing.try_lock()
            && let Err(failure) = self.put_moves_in_force().await
        {
            tracing::error!(volume = %name, %failure, "the status does not show that a volume was moved here");
        }
        Ok(redirect)
    }

    /// Serves a volume that was received, and announces it. Returns false if it cannot be served yet.
    pub(super) async fn take(&self, name: &VolumeName, come: &Come) -> bool {
        let _one_at_a_time = self.changing.lock().await;
        if !self.is_current(name, &come.id) {
            return false;
        }
        let here = Come { stage: CopyStage::Here, ..come.clone() };
        let kept = VolumeMoveRecord { come: Some(here), gone: None, ..self.moves.of(name) };
        let taken = match self.moves.keep(name, kept) {
            Ok(()) => self.put_moves_in_force().await,
            Err(failure) => Err(failure),
        };
        let blocked = self.blocked().into_iter().find(|(blocked, _)| blocked == name);
        let taken = taken.and(blocked.map_or(Ok(()), |(_, failure)| Err(failure)));
        match &taken {
            Ok(()) => {
                tracing::info!(volume = %name, from = %come.from_node, "a moved volume is served")
            }
            Err(failure) => {
                tracing::error!(volume = %name, %failure, "a moved volume cannot be served yet")
            }
        }
        taken.is_ok()
    }

    /// Asks the source node whether the move has taken place, and repeats that until it has decided.
    pub(super) fn ask_for_fate(self: &Arc<Self>, name: VolumeName, come: Come) {
        let node = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut told = None;
            loop {
                let Some(node) = node.upgrade() else { return };
                // Stop asking if another move of this volume has begun meanwhile.
                if !node.is_current(&name, &come.id) {
                    return;
                }
                let fate = node.fate_of(&name, &come).await;
                match (fate, node.berth(&name)) {
                    (MoveOutcome::Yours, Some(_berth)) if node.take(&name, &come).await => return,
                    (MoveOutcome::Undone, Some(_berth)) => {
                        tracing::info!(volume = %name, "the other node has kept the volume");
                        node.discard(&name, &come.id);
                        let _one_at_a_time = node.changing.lock().await;
                        if let Err(failure) = node.put_moves_in_force().await {
                            tracing::error!(
                                volume = %name, %failure, "the targets cannot be updated after a cancelled move"
                            );
                        }
                        return;
                    }
                    _ => {}
                }
                if told.replace(fate) != Some(fate) {
                    node.report_outcome(&name, &come, fate);
                }
                drop(node);
                tokio::time::sleep(ASK_EVERY).await;
            }
        });
    }
}
