//! The commands on objects: the fields of a CDB, without lists, data and capability (OSD-2, 6).

use crate::ObjectAddress;

/// A command of OSD-2. Identifiers of zero in `requested` fields let the store choose one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Command {
    ObjectStructureCheck {
        object: ObjectAddress,
    },
    /// Deletes all partitions and objects of the drive. `capacity` zero means the whole volume.
    FormatOsd {
        capacity: u64,
    },
    CreatePartition {
        requested: u64,
    },
    /// Fails if the partition is not empty, unless `with_contents` is set.
    RemovePartition {
        partition: u64,
        with_contents: bool,
    },
    /// Creates `count` user objects, at least 1, with consecutive identifiers.
    Create {
        partition: u64,
        requested: u64,
        count: u16,
    },
    CreateAndWrite {
        partition: u64,
        requested: u64,
        length: u64,
        start: u64,
    },
    Read {
        object: ObjectAddress,
        length: u64,
        start: u64,
    },
    Write {
        object: ObjectAddress,
        length: u64,
        start: u64,
    },
    Append {
        object: ObjectAddress,
        length: u64,
    },
    /// Overwrites the range with zeros.
    Clear {
        object: ObjectAddress,
        length: u64,
        start: u64,
    },
    /// Deletes the range. The bytes behind the range move to the start of the range.
    Punch {
        object: ObjectAddress,
        length: u64,
        start: u64,
    },
    Flush {
        object: ObjectAddress,
        scope: FlushScope,
        length: u64,
        start: u64,
    },
    FlushCollection {
        collection: ObjectAddress,
        scope: FlushScope,
    },
    FlushPartition {
        partition: u64,
        scope: FlushScope,
    },
    FlushOsd {
        scope: FlushScope,
    },
    Remove {
        object: ObjectAddress,
    },
    GetAttributes {
        object: ObjectAddress,
    },
    SetAttributes {
        object: ObjectAddress,
    },
    /// Lists partitions if `partition` is zero, otherwise the user objects of a partition.
    List {
        partition: u64,
        list: ListRequest,
    },
    /// Lists the members of a collection, or the collections of the partition if the COLLECTION_ID
    /// is zero.
    ListCollection {
        collection: ObjectAddress,
        list: ListRequest,
    },
    CreateCollection {
        partition: u64,
        requested: u64,
    },
    /// Fails if the collection has members, unless `force` is set.
    RemoveCollection {
        collection: ObjectAddress,
        force: bool,
    },
    CreateUserTrackingCollection {
        partition: u64,
        requested: u64,
        source: u64,
    },
    /// Finds the members of `collection` that match the query of the CDB continuation segment. The matches are listed,
    /// or become the members of the tracking collection `matches` if that is not zero. With `immediate` (IMMED_TR), the
    /// drive may answer before it has found all matches.
    Query {
        collection: ObjectAddress,
        allocation_length: u64,
        matches: u64,
        immediate: bool,
    },
    RemoveMemberObjects {
        collection: ObjectAddress,
    },
    GetMemberAttributes {
        collection: ObjectAddress,
    },
    SetMemberAttributes {
        collection: ObjectAddress,
    },
    CopyUserObjects {
        partition: u64,
        requested: u64,
        method: CopyMethod,
    },
    /// Makes a read-only copy of the partition `source`, which shares its blocks.
    CreateSnapshot {
        source: u64,
        requested: u64,
        method: CopyMethod,
    },
    /// Makes a writable copy of the partition `source`, which shares its blocks.
    CreateClone {
        source: u64,
        requested: u64,
        method: CopyMethod,
    },
    /// Makes a clone of a partition independent of the partition from which it was made.
    DetachClone {
        clone: u64,
    },
    /// Replaces the content of a snapshot or clone by the present content of the partition from which it was made.
    RefreshSnapshotOrClone {
        copy: u64,
    },
    RestorePartitionFromSnapshot {
        partition: u64,
        snapshot: u64,
    },
    /// Reports which ranges of an object hold data, are holes, or are damaged.
    ReadMap {
        object: ObjectAddress,
        allocation_length: u64,
        start: u64,
        map_type: MapType,
    },
    /// Compares the maps of `object` and of the user object in the CDB continuation segment.
    ReadMapsAndCompare {
        object: ObjectAddress,
        allocation_length: u64,
        start: u64,
    },
    SetKey(SetKeyRequest),
    /// Executes `cdb`, a command of SPC, on the drive's logical unit.
    PerformScsiCommand {
        cdb: [u8; 16],
    },
    /// Performs a task management function of SAM-5 on the drive's logical unit.
    PerformTaskManagementFunction {
        function: u8,
        task_tag: u64,
    },
    SetMasterKey {
        /// DH STEP: the step of the Diffie-Hellman exchange, 0 to 3.
        step: u8,
        key_identifier: [u8; 7],
        parameter_list_length: u32,
        allocation_length: u32,
    },
}

/// A range of consecutive identifiers of user objects in one partition.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IdRange {
    pub partition: u64,
    pub first: u64,
    pub count: u16,
}

/// The parts of an object that a flush makes stable. Codes: OSD-2, 6.10 to 6.13.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub enum FlushScope {
    /// Code 0: data and attributes of a user object, or the list of objects that a collection,
    /// partition or root contains.
    #[default]
    ContentOrList = 0,
    AttributesOnly = 1,
    /// Code 2: a range of a user object, or everything in a collection, partition or root.
    RangeOrEverything = 2,
}

impl FlushScope {
    /// Returns the scope with a code in bits 1 and 0; `None` for the reserved code 3.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code & 0x03 {
            0 => Self::ContentOrList,
            1 => Self::AttributesOnly,
            2 => Self::RangeOrEverything,
            _ => return None,
        })
    }
}

/// Selects the part of a list that LIST or LIST COLLECTION returns.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ListRequest {
    pub allocation_length: u64,
    /// INITIAL OBJECT_ID: the list has no identifier below this one.
    pub first: u64,
    /// LIST IDENTIFIER of an earlier answer that this request continues; zero for a new list.
    pub identifier: u32,
    /// LIST_ATTR: the answer has the selected attributes of each object.
    pub with_attributes: bool,
    pub order: ListOrder,
}

/// SORT ORDER of a list. OSD-2 defines ascending identifiers only.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ListOrder {
    #[default]
    Ascending,
}

/// DUPLICATION METHOD of a copy, snapshot or clone, which Forebay always makes by sharing blocks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CopyMethod(pub u8);

/// MAP TYPE of READ MAP: the runs that the answer lists.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u16)]
pub enum MapType {
    #[default]
    All = 0,
    Written = 1,
    Hole = 2,
    DamagedData = 3,
    DamagedAttributes = 0x8000,
}

impl MapType {
    #[must_use]
    pub const fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            0 => Self::All,
            1 => Self::Written,
            2 => Self::Hole,
            3 => Self::DamagedData,
            0x8000 => Self::DamagedAttributes,
            _ => return None,
        })
    }
}

/// The key that SET KEY replaces, and the values for the new key (OSD-2, 6.37).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SetKeyRequest {
    pub key: KeyToSet,
    pub key_identifier: [u8; 7],
    /// The drive derives the new key from this value and from the generation key one level above the new key.
    pub seed: [u8; 20],
}

/// The level and the name of the key that SET KEY replaces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyToSet {
    Root,
    Partition {
        partition: u64,
    },
    /// One of the 16 working keys of a partition. `version` is its number, 0 to 15.
    Working {
        partition: u64,
        version: u8,
    },
}

impl Command {
    /// Returns the object whose attributes the command sets and returns: the object that the CDB names, or that the
    /// command creates if its identifier was requested.
    #[must_use]
    pub const fn object(&self) -> ObjectAddress {
        match *self {
            Self::FormatOsd { .. }
            | Self::FlushOsd { .. }
            | Self::PerformScsiCommand { .. }
            | Self::PerformTaskManagementFunction { .. }
            | Self::SetMasterKey { .. } => ObjectAddress::ROOT,
            Self::ObjectStructureCheck { object }
            | Self::Read { object, .. }
            | Self::Write { object, .. }
            | Self::Append { object, .. }
            | Self::Clear { object, .. }
            | Self::Punch { object, .. }
            | Self::Flush { object, .. }
            | Self::Remove { object }
            | Self::GetAttributes { object }
            | Self::SetAttributes { object }
            | Self::ReadMap { object, .. }
            | Self::ReadMapsAndCompare { object, .. } => object,
            Self::FlushCollection { collection, .. }
            | Self::ListCollection { collection, .. }
            | Self::RemoveCollection { collection, .. }
            | Self::Query { collection, .. }
            | Self::RemoveMemberObjects { collection }
            | Self::GetMemberAttributes { collection }
            | Self::SetMemberAttributes { collection } => collection,
            Self::CreatePartition { requested } => ObjectAddress::partition(requested),
            Self::RemovePartition { partition, .. }
            | Self::FlushPartition { partition, .. }
            | Self::List { partition, .. }
            | Self::DetachClone { clone: partition }
            | Self::RefreshSnapshotOrClone { copy: partition }
            | Self::CreateSnapshot { source: partition, .. }
            | Self::CreateClone { source: partition, .. }
            | Self::RestorePartitionFromSnapshot { partition, .. } => {
                ObjectAddress::partition(partition)
            }
            Self::Create { partition, requested, .. }
            | Self::CreateAndWrite { partition, requested, .. }
            | Self::CreateCollection { partition, requested }
            | Self::CreateUserTrackingCollection { partition, requested, .. }
            | Self::CopyUserObjects { partition, requested, .. } => {
                ObjectAddress::new(partition, requested)
            }
            Self::SetKey(SetKeyRequest { key, .. }) => match key {
                KeyToSet::Root => ObjectAddress::ROOT,
                KeyToSet::Partition { partition } | KeyToSet::Working { partition, .. } => {
                    ObjectAddress::partition(partition)
                }
            },
        }
    }

    /// Returns the number of bytes of data that an initiator sends with the command, without its lists.
    #[must_use]
    pub const fn data_out_length(&self) -> u64 {
        match *self {
            Self::CreateAndWrite { length, .. }
            | Self::Write { length, .. }
            | Self::Append { length, .. } => length,
            Self::SetMasterKey { parameter_list_length, .. } => parameter_list_length as u64,
            _ => 0,
        }
    }

    /// Returns true for a command that changes no object, apart from the attributes in its lists.
    #[must_use]
    pub const fn only_reads(&self) -> bool {
        matches!(
            self,
            Self::Read { .. }
                | Self::GetAttributes { .. }
                | Self::List { .. }
                | Self::ListCollection { .. }
                | Self::GetMemberAttributes { .. }
                | Self::ReadMap { .. }
                | Self::ReadMapsAndCompare { .. }
                | Self::ObjectStructureCheck { .. }
                | Self::Query { matches: 0, .. }
                | Self::PerformScsiCommand { .. }
        )
    }

    /// Returns true if executing the command twice could have another effect than executing it once. An initiator must
    /// not repeat such a command before it knows that the first execution had no effect.
    #[must_use]
    pub const fn is_unrepeatable(&self) -> bool {
        !matches!(
            self,
            Self::ObjectStructureCheck { .. }
                | Self::Read { .. }
                | Self::Write { .. }
                | Self::Clear { .. }
                | Self::Flush { .. }
                | Self::FlushCollection { .. }
                | Self::FlushPartition { .. }
                | Self::FlushOsd { .. }
                | Self::GetAttributes { .. }
                | Self::SetAttributes { .. }
                | Self::List { .. }
                | Self::ListCollection { .. }
                | Self::GetMemberAttributes { .. }
                | Self::ReadMap { .. }
                | Self::ReadMapsAndCompare { .. }
                | Self::Query { matches: 0, .. }
        )
    }

    /// Returns true if the command creates an object or a partition.
    #[must_use]
    pub const fn creates(&self) -> bool {
        matches!(
            self,
            Self::CreatePartition { .. }
                | Self::Create { .. }
                | Self::CreateAndWrite { .. }
                | Self::CreateCollection { .. }
                | Self::CreateUserTrackingCollection { .. }
                | Self::CopyUserObjects { .. }
                | Self::CreateSnapshot { .. }
                | Self::CreateClone { .. }
        )
    }
}
