//! Reads the description of a unit after every login, because no command may be sent again to a unit that has been
//! replaced by another one.

use std::time::Duration;

use iscsi::session::initiator::{DataPhase, InitiatorCommandOutcome};
use scsi::{
    BlockCommand, Cdb, Command, ModeSense, PageControl, PrimaryCommand, ScsiStatus, Sense,
    SenseKey, vpd::ForebayVolume,
};
use volume::Geometry;

use crate::{
    Error, Settings, UnitDescription,
    error::is_not_served,
    session_io::SessionIo,
    unit_description::{
        self, CachingPageFlags, Capacity, Inquiry, ObjectDriveDescription, RemoteBlockLimits,
        UnitKind,
    },
};

/// The most unit attention conditions in a row that are accepted from a new nexus (as in open-iscsi and libiscsi).
pub(crate) const MOST_UNIT_ATTENTIONS: u32 = 10;

/// Pause before a command is repeated to a unit that was busy or not ready.
const PAUSE: Duration = Duration::from_millis(100);

/// Reads the description of the unit of `settings`, which is a disk or an object drive.
pub(crate) async fn probe(
    io: &mut SessionIo,
    settings: &Settings,
) -> Result<UnitDescription, Error> {
    let mut ask = Ask { io, settings };
    let mut inquiry = ask.inquiry().await;
    // An object drive that is being formatted is not ready, but its session can begin.
    if !matches!(&inquiry, Ok(inquiry) if inquiry.kind == UnitKind::ObjectDrive) {
        ask.until_ready().await?;
        if inquiry.is_err() {
            inquiry = ask.inquiry().await;
        }
    }
    let inquiry = inquiry?;
    let pages = ask.vpd(0x00).await?;
    let identity = ask.identity(&inquiry, &pages).await?;
    match inquiry.kind {
        UnitKind::Disk => probe_disk(&mut ask, inquiry, identity, &pages).await,
        UnitKind::ObjectDrive => {
            let mut drive = ObjectDriveDescription::default();
            if pages.contains(&OSD_INFORMATION) {
                let body = ask.vpd(OSD_INFORMATION).await?;
                drive.system_id = body.get(4..).and_then(<[u8]>::first_chunk).copied();
            }
            if pages.contains(&SECURITY_TOKEN) {
                drive.security_token = ask.vpd(SECURITY_TOKEN).await?.into();
            }
            Ok(UnitDescription::of_object_drive(identity, inquiry, drive))
        }
    }
}

/// The VPD page OSD Information of object drives (OSD-2). Our layout: the least security method, the supported methods,
/// two reserved bytes, the OSD SYSTEM ID of 20 bytes.
const OSD_INFORMATION: u8 = 0xb0;
/// The VPD page Security Token of object drives (OSD-2).
const SECURITY_TOKEN: u8 = 0xb1;

async fn probe_disk(
    ask: &mut Ask<'_>,
    inquiry: Inquiry,
    identity: String,
    pages: &[u8],
) -> Result<UnitDescription, Error> {
    let has = |page: u8| pages.contains(&page);
    let capacity = ask.capacity().await?;
    let mut limits = RemoteBlockLimits::default();
    if has(0xb0) {
        limits = RemoteBlockLimits::parse(&ask.vpd(0xb0).await?);
    }
    let mut write_same = false;
    if has(0xb2) {
        write_same = unit_description::provisioning_has_write_same(&ask.vpd(0xb2).await?);
    }
    let mut ours = ForebayVolume::default();
    if has(ForebayVolume::PAGE) {
        let page = ask.vpd_page(ForebayVolume::PAGE).await?;
        ours = ForebayVolume::from_bytes(&page).unwrap_or_default();
    }
    let caching = ask.caching().await?;
    // Use WRITE SAME only if the unit reports LBPRZ. Then WRITE SAME with UNMAP and a block of zeros always leaves
    // zeros. Otherwise unmapped blocks may read as anything. (UNMAP alone is a hint, which a unit may ignore.)
    let write_same = write_same && capacity.thin && capacity.reads_zeros;
    let max_same = limits.max_write_same_blocks.unwrap_or(WRITE_SAME_BLOCKS.into());
    Ok(UnitDescription {
        identity,
        vendor: inquiry.vendor,
        product: inquiry.product,
        geometry: Geometry {
            block_size: capacity.block_size,
            physical_block_size: capacity.physical_block_size,
            blocks: capacity.blocks,
            read_only: caching.read_only,
            thin: write_same,
            volatile_cache: caching.volatile_cache,
            atomic_blocks: 0,
            // Without a volatile cache every write is stable, and thus an epoch of its own.
            epoch_blocks: if caching.volatile_cache { ours.epoch_blocks } else { 0 },
            key_erasable: false,
            // The remote storage may keep older copies of overwritten data.
            in_place: false,
        },
        object_drive: None,
        fua: caching.fua,
        max_transfer_blocks: limits.max_transfer_blocks,
        orders_flushes: ours.orders_flushes,
        write_same_unmap_blocks: write_same.then(|| max_same.min(WRITE_SAME_BLOCKS.into()) as u32),
    })
}

/// Returns true if the sense data is about the unit and not about the command. Such sense data is ignored here, also a
/// deferred error about a write of the previous session: the new session treats all writes that were not flushed as
/// lost.
pub(crate) fn is_news(sense: &Sense) -> bool {
    sense.deferred || sense.key == SenseKey::UnitAttention
}

/// The most blocks of one WRITE SAME if the unit reports no limit or a larger one. Linux uses this limit, the most
/// blocks of WRITE SAME (10).
const WRITE_SAME_BLOCKS: u32 = 0xffff;

struct Ask<'a> {
    io: &'a mut SessionIo,
    settings: &'a Settings,
}

impl Ask<'_> {
    /// Returns the standard INQUIRY data, which a unit returns even if it is not ready.
    async fn inquiry(&mut self) -> Result<Inquiry, Error> {
        let inquiry = PrimaryCommand::Inquiry { page: None, allocation_length: 36 };
        let data = self.data(&Command::Primary(inquiry), 36).await?;
        Inquiry::parse(&data.ok_or_else(|| Error::unit("it refuses INQUIRY"))?)
    }

    /// Returns the identity of the unit, which supports the VPD pages `pages`.
    async fn identity(&mut self, inquiry: &Inquiry, pages: &[u8]) -> Result<String, Error> {
        if pages.contains(&0x83)
            && let Some(identity) = unit_description::designator(&self.vpd(0x83).await?)
        {
            return Ok(identity);
        }
        if pages.contains(&0x80) {
            return Ok(unit_description::serial_identity(inquiry, &self.vpd(0x80).await?));
        }
        // A unit without a designator and a serial number is identified by its target and LUN.
        Ok(format!("{}/{}", self.settings.target, self.settings.lun))
    }

    /// Sends TEST UNIT READY until the unit is ready, but not longer than the time-out for a busy target.
    async fn until_ready(&mut self) -> Result<(), Error> {
        let time_out = self.settings.busy_time_out;
        let asking = async {
            let mut attentions = 0;
            loop {
                let outcome = self.command(PrimaryCommand::TestUnitReady.encode(), 0).await?;
                match (outcome.status, outcome.sense) {
                    (ScsiStatus::Good, _) => return Ok(()),
                    (ScsiStatus::CheckCondition, Some(sense))
                        if is_news(&sense) && attentions < MOST_UNIT_ATTENTIONS =>
                    {
                        attentions += 1;
                    }
                    (ScsiStatus::CheckCondition, Some(sense)) if is_not_served(&sense) => {
                        return Err(Error::NotServed(sense));
                    }
                    (ScsiStatus::CheckCondition, Some(sense))
                        if sense.key == SenseKey::NotReady =>
                    {
                        tokio::time::sleep(PAUSE).await;
                    }
                    (ScsiStatus::Busy | ScsiStatus::TaskSetFull, _) => {
                        tokio::time::sleep(PAUSE).await
                    }
                    (_, Some(sense)) => return Err(Error::unit(sense.to_string())),
                    (status, None) => {
                        return Err(Error::unit(format!("it answers with {status:?}")));
                    }
                }
            }
        };
        let waited = tokio::time::timeout(time_out, asking).await;
        waited.map_err(|_| Error::TimedOut("the unit did not become ready"))?
    }

    /// Returns the data of a command; `None` if the unit does not support the command.
    async fn data(&mut self, command: &Command, length: u32) -> Result<Option<Vec<u8>>, Error> {
        let mut attempts = 0;
        loop {
            let outcome = self.command(command.encode(), length).await?;
            let again = match outcome.status {
                ScsiStatus::Good => return Ok(Some(outcome.data_in.concat())),
                ScsiStatus::Busy | ScsiStatus::TaskSetFull => {
                    tokio::time::sleep(PAUSE).await;
                    true
                }
                _ => outcome.sense.is_some_and(|sense| is_news(&sense)),
            };
            attempts += 1;
            match outcome.sense {
                _ if again && attempts < MOST_UNIT_ATTENTIONS => {}
                Some(sense) if sense.key == SenseKey::IllegalRequest => return Ok(None),
                Some(sense) => return Err(Error::unit(format!("{command:?}: {sense}"))),
                None => return Err(Error::unit(format!("{command:?}: {:?}", outcome.status))),
            }
        }
    }

    async fn command(&mut self, cdb: Cdb, length: u32) -> Result<InitiatorCommandOutcome, Error> {
        let transfer = if length == 0 { DataPhase::None } else { DataPhase::In(length) };
        self.io.execute(self.settings, cdb, transfer).await
    }

    /// Returns the body of a VPD page, or an empty one if the unit does not have the page.
    async fn vpd(&mut self, page: u8) -> Result<Vec<u8>, Error> {
        let data = self.vpd_page(page).await?;
        Ok(unit_description::vpd_body(page, &data).unwrap_or_default().to_vec())
    }

    /// Reads a VPD page of the unit, and returns it with its header.
    async fn vpd_page(&mut self, page: u8) -> Result<Vec<u8>, Error> {
        let command =
            Command::Primary(PrimaryCommand::Inquiry { page: Some(page), allocation_length: 512 });
        Ok(self.data(&command, 512).await?.unwrap_or_default())
    }

    async fn capacity(&mut self) -> Result<Capacity, Error> {
        let long = Command::Block(BlockCommand::ReadCapacity16 { allocation_length: 32 });
        if let Some(data) = self.data(&long, 32).await? {
            return Capacity::parse16(&data);
        }
        let short = self.data(&Command::Block(BlockCommand::ReadCapacity10), 8).await?;
        Capacity::parse10(&short.ok_or_else(|| Error::unit("it has no capacity"))?)
    }

    async fn caching(&mut self) -> Result<CachingPageFlags, Error> {
        let command = Command::Primary(PrimaryCommand::ModeSense(ModeSense {
            ten: false,
            long_lba: false,
            no_block_descriptors: true,
            control: PageControl::Current,
            page: 0x08,
            subpage: 0,
            allocation_length: 64,
        }));
        let data = self.data(&command, 64).await?;
        Ok(data.map_or(CachingPageFlags::UNKNOWN, |data| CachingPageFlags::parse(&data)))
    }
}
