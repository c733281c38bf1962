//! The reply of an object store to a command.

use bytes::Bytes;
use volume::Data;

use crate::{Attribute, ObjectAddress, ObjectType};

/// The reply to a command that succeeded.
#[derive(Clone, Debug, Default)]
pub struct ObjectReply {
    pub data: ReplyData,
    /// The retrieved attributes in the order of the request.
    pub attributes: Vec<Attribute>,
    /// The attributes of the one page that was requested in page format (OSD-2, 7.1.3).
    pub page: Option<Bytes>,
    /// Each object of a command on several objects, with its retrieved attributes: the objects that
    /// CREATE created, or the members of GET MEMBER ATTRIBUTES and similar commands.
    pub members: Vec<ListedObject>,
    pub current: CurrentCommand,
    /// Set if a READ ends behind the object's last byte: the number of bytes that the READ returned (sense 1/3B/17).
    pub read_past_end: Option<u64>,
}

/// The data that the drive returns for a command, without attributes.
#[derive(Clone, Debug, Default)]
pub enum ReplyData {
    #[default]
    None,
    Bytes(Data),
    List(ObjectList),
    Map(Vec<MapRun>),
}

/// The answer of LIST, LIST COLLECTION and QUERY.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ObjectList {
    pub objects: Vec<ListedObject>,
    /// Length of the complete list in bytes, without its header.
    pub total_bytes: u64,
    /// The identifier of the object with which the next LIST continues; zero if the list is complete.
    pub continuation: u64,
    /// LIST IDENTIFIER for the continuation; zero if the list is complete.
    pub identifier: u32,
    /// LSTCHG: objects were created or removed since the first part of this list.
    pub changed: bool,
}

/// An object in the answer to a command on several objects, with its retrieved attributes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ListedObject {
    pub id: u64,
    pub object_type: ObjectType,
    /// The attributes that the request selected; empty if it selected none.
    pub attributes: Vec<Attribute>,
}

/// A run of bytes of a user object in the answer of READ MAP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MapRun {
    pub kind: MapRunKind,
    pub start: u64,
    pub length: u64,
}

/// The kinds of a run of bytes, with the codes of MAP TYPE.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u16)]
pub enum MapRunKind {
    Written = 1,
    Hole = 2,
    /// The drive answers a READ of this run with a medium error.
    DamagedData = 3,
}

/// The attributes of the current command page (OSD-2, 7.2.27), without the response integrity check
/// value.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CurrentCommand {
    /// `None` if the command affects no object.
    pub object_type: Option<ObjectType>,
    pub object: ObjectAddress,
    /// Offset in the object of the first byte that APPEND wrote.
    pub append_start: u64,
    /// Number of bytes that the command allocated; negative if it freed more than it allocated.
    pub change_in_used: i64,
}
