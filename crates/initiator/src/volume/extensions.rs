//! The optional abilities of a volume that a remote unit may have.

use std::{sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use iscsi::session::initiator::DataPhase;
use scsi::{BlockCommand, ClaimAction, Command, VendorCommand, parse_lba_status_list};
use volume::{
    Allocation, Claim, CoherenceChannel, Data, EpochRollback, ExclusiveWriter, Extent,
    FlushBegunCallback, Holding, Io, Lba, OrderedFlush, Provisioning, Resizable, ThinSpaceUsage,
};

use super::{RemoteVolume, allocation};
use crate::{claim, claim_task::ClaimWatchTask, reservation::give_back};

impl Provisioning for RemoteVolume {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        Io::new(async move {
            if !self.geometry.thin || self.no_lba_status.load(Ordering::Relaxed) {
                return Ok(Allocation::mapped(extent.blocks));
            }
            let allocation_length = LBA_STATUS_BYTES;
            let asked = BlockCommand::GetLbaStatus { lba: extent.lba.0, allocation_length };
            let transfer = DataPhase::In(allocation_length);
            match self.session.execute(asked.encode(), transfer).await {
                Ok(answer) => {
                    let told: Data = answer.data_in.into_iter().collect();
                    let told = told.into_bytes();
                    Ok(allocation(extent, parse_lba_status_list(&told)))
                }
                Err(error) if error.is_not_supported() => {
                    self.no_lba_status.store(true, Ordering::Relaxed);
                    Ok(Allocation::mapped(extent.blocks))
                }
                Err(error) => Err(error.into_volume_error(extent)),
            }
        })
    }

    /// The used space is unknown, since the initiator does not read it from the unit.
    fn usage(&self) -> Option<ThinSpaceUsage> {
        None
    }
}

/// The allocation length of GET LBA STATUS: a header, and as many descriptors as the runs that a volume returns in one
/// call.
const LBA_STATUS_BYTES: u32 = 8 + 16 * volume::MOST_RUNS as u32;

impl Resizable for RemoteVolume {
    fn refresh(&self) {
        self.session.look_at_size();
    }
}

impl EpochRollback for RemoteVolume {
    fn roll_back(&self) -> Io<'_, ()> {
        Io::new(async move {
            let facts = self.facts().await?;
            if facts.geometry.epoch_blocks == 0 {
                return Err(volume::Error::Device("the remote unit has no epochs".into()));
            }
            let whole = Extent { lba: Lba(0), blocks: 1 };
            let answer =
                self.session.execute(VendorCommand::RollBack.encode(), DataPhase::None).await;
            if let Err(error) = answer {
                return Err(self.failed(error, whole).await);
            }
            self.stability.lock().forget();
            Ok(())
        })
    }
}

impl OrderedFlush for RemoteVolume {
    /// Flushes the unit. If the unit reports that it performs later writes of its claim's owner after the flush, calls
    /// `begun` as soon as such writes may be sent. The command is sent only once, and only in the session in which the
    /// unit has reported this. If it were sent again, it could end an epoch that holds only a part of the later writes.
    fn flush_ahead<'a>(&'a self, begun: FlushBegunCallback<'a>) -> Io<'a, ()> {
        Io::new(async move {
            // Read the generation before the description. If a new session begins in between, the description is that
            // of the new session. The command is then not sent, because the generation is that of the old one.
            let generation = self.session.generation();
            let facts = self.facts().await?;
            if !facts.orders_flushes || self.session.claimed().holding() != Holding::Held {
                drop(begun);
                return self.flush_all(&facts).await;
            }
            let command = Command::synchronize_cache().encode();
            self.flush_with(&facts, || self.session.execute_once(command, generation, begun)).await
        })
    }
}

impl ExclusiveWriter for RemoteVolume {
    fn claim(&self, claim: Claim) -> Io<'_, Holding> {
        Io::new(async move {
            let asked = self.session.claim(claim, self.reserves).await;
            let whole = Extent { lba: Lba(0), blocks: 1 };
            let holding = asked.map_err(|error| error.into_volume_error(whole))?;
            *self.watch.lock() = Some(ClaimWatchTask::start(self.session.clone(), self.reserves));
            Ok(holding)
        })
    }

    fn holding(&self) -> Holding {
        self.session.claimed().holding()
    }

    fn release(&self) -> Io<'_, ()> {
        Io::new(async move {
            let Some(claim) = self.session.claimed().get() else { return Ok(()) };
            let (cdb, transfer) = match self.session.claimed().holding() {
                Holding::Held => {
                    claim::out(ClaimAction::Release, &claim, self.session.claimed().list())
                }
                Holding::Reserved => give_back(&claim),
                _ => return Ok(()),
            };
            self.perform(cdb, transfer, Extent { lba: Lba(0), blocks: 1 }).await?;
            self.session.claimed().clear();
            Ok(())
        })
    }
}

impl CoherenceChannel for RemoteVolume {
    fn send_requests(&self, list: Bytes) -> Io<'_, ()> {
        Io::new(async move {
            let command = VendorCommand::TokenOut { parameter_list_length: list.len() as u32 };
            let whole = Extent { lba: Lba(0), blocks: 1 };
            self.perform(command.encode(), DataPhase::Out(list), whole).await.map(drop)
        })
    }

    fn receive_answers(&self, wait: Duration) -> Io<'_, Bytes> {
        Io::new(async move {
            let wait_ms = u16::try_from(wait.as_millis()).unwrap_or(u16::MAX);
            let command = VendorCommand::TokenIn { wait_ms, allocation_length: TOKEN_LIST_BYTES };
            let transfer = DataPhase::In(TOKEN_LIST_BYTES);
            let whole = Extent { lba: Lba(0), blocks: 1 };
            let answer = self.perform(command.encode(), transfer, whole).await?;
            let list: Data = answer.data_in.into_iter().collect();
            Ok(list.into_bytes())
        })
    }
}

/// The most bytes of coherence messages that one call accepts: the maximum length of such a list.
const TOKEN_LIST_BYTES: u32 = 1 << 20;
