//! Outdated volumes: a node that was restored from a backup, or has lost its records, does not serve a volume that
//! another node has with a higher generation.

use std::{sync::Arc, time::Duration};

use ::names::NodeVolumeEntry;
use control::Failure;
use volume::{ConditionChange, OngoingCondition};

use super::Node;
use crate::moves::{MoveId, MoveOutRecord, VolumeMoveRecord};

/// Interval at which this node checks the announcements of other nodes, which are as frequent.
const LOOK_EVERY: Duration = Duration::from_secs(2);

impl Node {
    /// Finds units in the settings in force whose volume another node has with a higher generation, and records them as
    /// moved away. Returns true if it found any. With `asks`, asks the other nodes first.
    pub(super) async fn note_newer(&self, asks: bool) -> Result<bool, Failure> {
        let Some(naming) = &self.naming else { return Ok(false) };
        let newer = naming.moved_on(&self.own_units(), asks).await;
        for (ours, generation, place) in &newer {
            let kept = self.moves.of(&ours.volume);
            if kept.gone.as_ref().is_some_and(|gone| gone.generation >= *generation) {
                continue;
            }
            let file = kept.come.as_ref().map(|come| come.file.display().to_string());
            tracing::error!(
                volume = %ours.volume, node = %place.node, gln = %place.gln, generation, file,
                remedy = "nothing has to be done if hosts use the other node; if this copy is the \
                 right one, give its unit a higher `generation`, and `forebay reload`",
                "another node has a newer version of this volume: the copy here is not served, and is \
                 kept"
            );
            let portals = &place.portals;
            let portal = portals.iter().find(|portal| !portal.tls).or(portals.first());
            let gone = MoveOutRecord {
                id: MoveId::random()?,
                target: ours.target.clone(),
                lun: ours.lun,
                generation: *generation,
                to: place.gln,
                to_node: place.node.clone(),
                redirect: portal.map(|portal| portal.address.clone()).unwrap_or_default(),
                left: None,
            };
            self.moves
                .keep(&ours.volume, VolumeMoveRecord { gone: Some(gone), come: None, ..kept })?;
        }
        Ok(!newer.is_empty())
    }

    /// Removes the units whose volumes another node has in a newer version from the settings in force. Call this before
    /// any unit is opened.
    pub(super) fn leave_out_newer(&self) {
        let mut inner = self.inner.lock();
        let mut settings = (*inner.base).clone();
        // Ignore volumes that cannot be served: they were reported when their records were last applied.
        let _ = self.moves.apply(&mut settings);
        inner.settings = Arc::new(settings);
    }

    /// Checks at intervals, as long as the node serves, whether another node has a newer version of a volume that is
    /// served here.
    pub(super) fn look_for_newer(self: &Arc<Self>) {
        let node = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut failing = OngoingCondition::default();
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(node) = node.upgrade() else { return };
                let _one_at_a_time = node.changing.lock().await;
                let given_way = match node.note_newer(false).await {
                    Ok(true) => node.put_moves_in_force().await,
                    Ok(false) => Ok(()),
                    Err(failure) => Err(failure),
                };
                match (failing.turn(given_way.is_err()), given_way) {
                    (Some(ConditionChange::Begins), Err(failure)) => tracing::error!(
                        %failure, "a volume is still served here, although another node has a newer version"
                    ),
                    (Some(ConditionChange::Ends(lasted)), _) => tracing::info!(
                        lasted_s = lasted.as_secs(),
                        "no volume is served here any more of which another node has a newer version"
                    ),
                    _ => {}
                }
            }
        });
    }

    /// Returns the units in force whose volumes are announced.
    fn own_units(&self) -> Vec<NodeVolumeEntry> {
        let settings = self.settings();
        let units = settings.target.iter().flat_map(|target| {
            target.unit.iter().filter_map(move |unit| {
                Some(NodeVolumeEntry {
                    volume: unit.volume.clone()?,
                    target: target.name.0.clone(),
                    lun: unit.lun,
                    portals: Vec::new(),
                    generation: unit.generation,
                })
            })
        });
        units.collect()
    }
}
