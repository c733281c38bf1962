//! Objects as values: identifiers, attributes, the commands on them, and the trait [`ObjectStore`].
//!
//! An object store keeps byte sequences with attributes, in four kinds of object (OSD-2, 4.6):
//!
//! | kind | contains | identified by |
//! |------|----------|---------------|
//! | root | partitions | (0, 0) |
//! | partition | collections and user objects | (PARTITION_ID, 0) |
//! | collection | a list of user objects of its partition | (PARTITION_ID, COLLECTION_ID) |
//! | user object | bytes | (PARTITION_ID, USER_OBJECT_ID) |
//!
//! A drive is an [`ObjectStore`], and so is an initiator's session with a drive. The crate `osd` has the bytes of
//! commands, lists and capabilities on the wire.

mod address;
mod attribute;
mod page;
mod pages;
mod timestamp;
mod command;
mod continuation;
mod request;
mod reply;
mod error;
mod store;

pub use address::{FIRST_IDENTIFIER, ObjectAddress, ObjectType};
pub use attribute::{Attribute, AttributeId, AttributeSelection, MAX_VALUE_LENGTH};
pub use command::{
    Command, CopyMethod, FlushScope, IdRange, KeyToSet, ListOrder, ListRequest, MapType,
    SetKeyRequest,
};
pub use continuation::{Continuation, CopySource, Query, QueryCriterion, QueryMatch, ScatterEntry};
pub use error::{ObjectError, RefusedField};
pub use page::{
    COMMAND_TRACKING, CURRENT_COMMAND, PageFamily, StandardPage, family_of, is_vendor_number,
};
pub use pages::{AttributeAccess, StandardAttribute, attributes_of, standard_attribute};
pub use reply::{
    CurrentCommand, ListedObject, MapRun, MapRunKind, ObjectList, ObjectReply, ReplyData,
};
pub use request::{CommandOptions, Isolation, ObjectRequest, TimestampControl};
pub use store::{ObjectResult, ObjectStore};
pub use timestamp::Timestamp;
