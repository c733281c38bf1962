//! Sessions of our own initiator with a block unit or an object drive.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use initiator::{Credential, KeyChain, RemoteObjects, RemoteVolume, Settings};
use object::{Command, FlushScope, KeyToSet, ObjectAddress, ObjectReply, ObjectRequest, ReplyData};
use osd::security::{Algorithm, SecurityMethod};
use rig::node::ServeProcess;
use volume::{Data, Durability, Extent, Lba, Volume};

use super::place::{KEY_FILE, NAME};

/// The partition of all objects of a run.
pub const PARTITION: u64 = 0x1_0000;

/// A session with one unit.
pub enum ObjectBenchSession {
    Block(RemoteVolume),
    /// A drive, and the object that reads and writes use.
    Object(RemoteObjects, ObjectAddress),
}

fn settings(node: &ServeProcess, lun: u16) -> Settings {
    Settings::new(node.portal().to_string(), NAME, lun)
}

/// Logs in to a block unit.
pub async fn block(node: &ServeProcess, lun: u16) -> Result<ObjectBenchSession> {
    Ok(ObjectBenchSession::Block(RemoteVolume::connect(settings(node, lun)).await?))
}

/// Logs in to a drive.
pub async fn drive(node: &ServeProcess, lun: u16, credential: Credential) -> Result<RemoteObjects> {
    Ok(RemoteObjects::connect(settings(node, lun), credential, None).await?)
}

/// Returns the credential of the drive's owner.
pub fn owner(method: SecurityMethod, algorithm: Algorithm) -> Result<Credential> {
    let chain = KeyChain::parse(KEY_FILE.as_bytes())?;
    Ok(Credential::keys(chain, method, algorithm, 0))
}

/// Sets the keys of the root and of the partition, and creates the partition before its keys.
pub async fn set_keys(owner: &RemoteObjects) -> Result<()> {
    set_key(owner, KeyToSet::Root).await?;
    create_partition(owner).await?;
    set_key(owner, KeyToSet::Partition { partition: PARTITION }).await?;
    set_key(owner, KeyToSet::Working { partition: PARTITION, version: 0 }).await
}

pub async fn set_key(owner: &RemoteObjects, key: KeyToSet) -> Result<()> {
    let own = owner.credential().owner().context("the session has no keys")?;
    owner.request(ObjectRequest::new(own.set_key(key))).await?;
    Ok(())
}

pub async fn create_partition(drive: &RemoteObjects) -> Result<()> {
    drive.request(ObjectRequest::new(Command::CreatePartition { requested: PARTITION })).await?;
    Ok(())
}

/// Creates an object without data.
pub async fn create(drive: &RemoteObjects) -> Result<ObjectAddress> {
    let create = Command::Create { partition: PARTITION, requested: 0, count: 1 };
    Ok(drive.request(ObjectRequest::new(create)).await?.current.object)
}

/// Reads a range of an object. Fails if the drive returns fewer bytes.
pub async fn read(
    drive: &RemoteObjects,
    object: ObjectAddress,
    start: u64,
    bytes: u64,
) -> Result<()> {
    let read = Command::Read { object, length: bytes, start };
    let reply = drive.request(ObjectRequest::new(read)).await?;
    let ReplyData::Bytes(data) = reply.data else { anyhow::bail!("a READ without data") };
    ensure!(data.len() as u64 == bytes, "a READ of {} instead of {bytes} bytes", data.len());
    Ok(())
}

/// Returns a WRITE to an object.
pub fn write(object: ObjectAddress, start: u64, data: Bytes) -> ObjectRequest {
    let write = Command::Write { object, length: data.len() as u64, start };
    ObjectRequest::new(write).with_data(Data::from(data))
}

/// Returns a CREATE AND WRITE with this data.
pub fn create_and_write(data: Bytes) -> ObjectRequest {
    let length = data.len() as u64;
    let create = Command::CreateAndWrite { partition: PARTITION, requested: 0, length, start: 0 };
    ObjectRequest::new(create).with_data(Data::from(data))
}

pub async fn request(drive: &RemoteObjects, request: ObjectRequest) -> Result<ObjectReply> {
    Ok(drive.request(request).await?)
}

/// Makes everything on the drive stable.
pub async fn flush(drive: &RemoteObjects) -> Result<()> {
    let flush = Command::FlushOsd { scope: FlushScope::RangeOrEverything };
    drive.request(ObjectRequest::new(flush)).await?;
    Ok(())
}

impl ObjectBenchSession {
    pub async fn read(&self, start: u64, bytes: u64) -> Result<()> {
        match self {
            Self::Object(drive, object) => read(drive, *object, start, bytes).await,
            Self::Block(volume) => {
                let block = u64::from(volume.geometry().block_size);
                let extent = Extent { lba: Lba(start / block), blocks: (bytes / block) as u32 };
                let data = volume.read(extent).await?;
                ensure!(data.len() as u64 == bytes, "a read of {} bytes", data.len());
                Ok(())
            }
        }
    }

    pub async fn write(&self, start: u64, data: Bytes) -> Result<()> {
        match self {
            Self::Object(drive, object) => {
                drive.request(write(*object, start, data)).await?;
                Ok(())
            }
            Self::Block(volume) => {
                let lba = Lba(start / u64::from(volume.geometry().block_size));
                Ok(volume.write(lba, Data::from(data), Durability::Volatile).await?)
            }
        }
    }

    /// Writes the first `bytes` of the unit or of the object.
    pub async fn fill(&self, bytes: u64) -> Result<()> {
        let data = Bytes::from(vec![0x5a; FILL_BYTES as usize]);
        for start in (0..bytes).step_by(FILL_BYTES as usize) {
            self.write(start, data.slice(..FILL_BYTES.min(bytes - start) as usize)).await?;
        }
        Ok(())
    }

    pub async fn close(&self) {
        match self {
            Self::Object(drive, _) => drive.close().await,
            Self::Block(volume) => volume.close().await,
        }
    }
}

/// The size of the writes that fill a unit.
const FILL_BYTES: u64 = 1 << 20;
