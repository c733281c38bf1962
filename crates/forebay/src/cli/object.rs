//! The command line of `forebay object`.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, Subcommand, ValueEnum};
use config::quantity::TimeSpan;
use object::ObjectAddress;

use super::Credentials;

#[derive(Args, Debug)]
pub struct ObjectArgs {
    #[command(subcommand)]
    pub act: ObjectAct,
}

/// The commands on an object drive.
#[derive(Debug, Subcommand)]
pub enum ObjectAct {
    /// Create the master key of a drive in a new file that only its owner can read
    #[command(after_help = "Example:\n  forebay object key drive.key")]
    Key {
        /// File to create: two lines of 64 hexadecimal digits
        file: PathBuf,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete everything on a drive, and set its root key
    #[command(
        after_help = "Example:\n  forebay object format iscsi://10.0.0.2/iqn.2026-11.com.example:drive \\\n    --key-file drive.key --lose-data"
    )]
    Format {
        #[command(flatten)]
        drive: DriveArgs,
        /// Confirm that all objects are deleted
        #[arg(long)]
        lose_data: bool,
    },
    /// Show the properties of a drive, a partition or an object
    #[command(
        after_help = "Example:\n  forebay object info iscsi://10.0.0.2/iqn.2026-11.com.example:drive --key-file drive.key"
    )]
    Info {
        #[command(flatten)]
        drive: DriveArgs,
        /// Partition (PID), object (PID/OID) or nothing for the drive; decimal, 0x10000 or 10000h
        object: Option<ObjectName>,
    },
    /// List the partitions of a drive, or the objects of a partition
    #[command(
        after_help = "Example:\n  forebay object list iscsi://10.0.0.2/iqn.2026-11.com.example:drive 10000h --long"
    )]
    List {
        #[command(flatten)]
        drive: DriveArgs,
        /// Partition whose objects to list (PID) [default: list the partitions]
        partition: Option<ObjectName>,
        /// Show length and name of each object, too
        #[arg(long)]
        long: bool,
        /// List the collections of the partition instead of its objects
        #[arg(long)]
        collections: bool,
    },
    /// Create a partition, or objects in a partition, and print their identifiers
    ///
    /// With --key-file, a new partition gets its partition key and working key.
    #[command(
        after_help = "Example:\n  forebay object create iscsi://10.0.0.2/iqn.2026-11.com.example:drive --key-file drive.key"
    )]
    Create {
        #[command(flatten)]
        drive: DriveArgs,
        /// Partition in which to create objects (PID), or the object to create (PID/OID) [default: create a partition]
        object: Option<ObjectName>,
        /// Create a partition with this identifier
        #[arg(long, value_name = "PID", conflicts_with = "object", value_parser = number)]
        partition: Option<u64>,
        /// Number of objects to create
        #[arg(long, value_name = "N", default_value_t = 1, requires = "object",
            value_parser = clap::value_parser!(u16).range(1..))]
        count: u16,
    },
    /// Write a file to an object, and make it stable
    #[command(
        after_help = "Example:\n  forebay object put iscsi://10.0.0.2/iqn.2026-11.com.example:drive 10000h/10001h backup.tar"
    )]
    Put {
        #[command(flatten)]
        drive: DriveArgs,
        /// Object to write (PID/OID), or partition in which to create one (PID)
        object: ObjectName,
        /// File to read
        file: PathBuf,
        /// Continue a put that was interrupted
        #[arg(long)]
        resume: bool,
        /// File that records the interrupted put [default: FILE.put-PID-OID]
        #[arg(long, value_name = "FILE")]
        state: Option<PathBuf>,
    },
    /// Read an object into a file
    #[command(
        after_help = "Example:\n  forebay object get iscsi://10.0.0.2/iqn.2026-11.com.example:drive 10000h/10001h copy.tar"
    )]
    Get {
        #[command(flatten)]
        drive: DriveArgs,
        /// Object to read (PID/OID)
        object: ObjectName,
        /// File to write, which must not exist
        file: PathBuf,
        /// Continue a get that was interrupted: keep what the file has
        #[arg(long)]
        resume: bool,
    },
    /// Append a file to an object, and make it stable
    #[command(
        after_help = "Example:\n  forebay object append iscsi://10.0.0.2/iqn.2026-11.com.example:drive 10000h/10001h today.log"
    )]
    Append {
        #[command(flatten)]
        drive: DriveArgs,
        /// Object to which to append (PID/OID)
        object: ObjectName,
        /// File to read
        file: PathBuf,
        /// Continue an append that was interrupted: append only what the object lacks
        #[arg(long)]
        resume: bool,
        /// File that records the progress [default: FILE.append-PID-OID]
        #[arg(long, value_name = "FILE")]
        state: Option<PathBuf>,
    },
    /// Remove a partition, an object or a collection
    #[command(
        after_help = "Example:\n  forebay object remove iscsi://10.0.0.2/iqn.2026-11.com.example:drive 10000h/10001h"
    )]
    Remove {
        #[command(flatten)]
        drive: DriveArgs,
        /// Partition (PID) or object (PID/OID)
        object: ObjectName,
        /// Remove a partition with everything in it
        #[arg(long)]
        with_contents: bool,
        /// The object is a collection
        #[arg(long)]
        collection: bool,
    },
    /// Show or set attributes
    #[command(
        after_help = "Example:\n  forebay object attributes iscsi://10.0.0.2/iqn.2026-11.com.example:drive 10000h/10001h \\\n    --set 1h/9h=name"
    )]
    Attributes {
        #[command(flatten)]
        drive: DriveArgs,
        /// Partition (PID), object (PID/OID) or nothing for the drive
        object: Option<ObjectName>,
        /// Attribute to show, PAGE/NUMBER [default: all]
        #[arg(long, value_name = "PAGE/NUMBER")]
        get: Vec<AttributeName>,
        /// Attribute to set: PAGE/NUMBER=TEXT, or PAGE/NUMBER=hex:DIGITS; an empty value removes it
        #[arg(long, value_name = "PAGE/NUMBER=VALUE")]
        set: Vec<AttributeValue>,
    },
    /// Create a collection, show its members, add or drop a member
    #[command(
        after_help = "Example:\n  forebay object collection iscsi://10.0.0.2/iqn.2026-11.com.example:drive 10000h/10005h \\\n    --add 10001h"
    )]
    Collection {
        #[command(flatten)]
        drive: DriveArgs,
        /// Collection (PID/CID), or partition in which to create one (PID)
        collection: ObjectName,
        /// Add this object of the partition
        #[arg(long, value_name = "OID", value_parser = number)]
        add: Option<u64>,
        /// Drop this object from the collection; the object stays
        #[arg(long, value_name = "OID", conflicts_with = "add", value_parser = number)]
        drop: Option<u64>,
    },
    /// Find the members of a collection whose attributes are in a range
    #[command(
        after_help = "Example:\n  forebay object query iscsi://10.0.0.2/iqn.2026-11.com.example:drive 10000h/10005h \\\n    --where 1h/9h=a..b"
    )]
    Query {
        #[command(flatten)]
        drive: DriveArgs,
        /// Collection (PID/CID)
        collection: ObjectName,
        /// Criterion: PAGE/NUMBER=LEAST..MOST, both as text or hex:DIGITS, either may be empty
        #[arg(long = "where", value_name = "CRITERION", required = true)]
        criteria: Vec<AttributeValue>,
        /// Find members that meet any criterion instead of all
        #[arg(long)]
        any: bool,
    },
    /// Show which ranges of an object hold data, are holes, or are damaged
    #[command(
        after_help = "Example:\n  forebay object map iscsi://10.0.0.2/iqn.2026-11.com.example:drive 10000h/10001h"
    )]
    Map {
        #[command(flatten)]
        drive: DriveArgs,
        /// Object (PID/OID)
        object: ObjectName,
    },
    /// Make a snapshot or clone of a partition, or restore one, and print the new identifier
    #[command(
        after_help = "Example:\n  forebay object snapshot iscsi://10.0.0.2/iqn.2026-11.com.example:drive 10000h"
    )]
    Snapshot {
        #[command(flatten)]
        drive: DriveArgs,
        /// Partition to copy, or snapshot or clone to change (PID)
        partition: ObjectName,
        /// Make a clone, which can be written
        #[arg(long = "clone", conflicts_with_all = ["detach", "refresh", "restore"])]
        clone_it: bool,
        /// Make this clone independent of its source
        #[arg(long, conflicts_with_all = ["refresh", "restore"])]
        detach: bool,
        /// Replace the content of this snapshot or clone by the present content of its source
        #[arg(long, conflicts_with = "restore")]
        refresh: bool,
        /// Replace the content of this partition by that of a snapshot
        #[arg(long, value_name = "SNAPSHOT", value_parser = number)]
        restore: Option<u64>,
    },
    /// Set the root key, or the keys of a partition, to those that the master key determines
    ///
    /// Without --force a key that works already is left alone. A new root key makes all partition keys invalid, and a new
    /// partition key all its working keys.
    #[command(
        after_help = "Example:\n  forebay object set-key iscsi://10.0.0.2/iqn.2026-11.com.example:drive --key-file drive.key"
    )]
    SetKey {
        #[command(flatten)]
        drive: DriveArgs,
        /// Partition whose keys to set (PID) [default: the root key]
        partition: Option<ObjectName>,
        /// Set the key even if it works already
        #[arg(long)]
        force: bool,
        /// Set the root key and the keys of all partitions
        #[arg(long, conflicts_with = "partition")]
        all: bool,
    },
    /// Sign a capability for another client, and write it to a new file
    ///
    /// The client uses the file with --credential. `forebay object revoke` makes the capability invalid before it
    /// expires.
    #[command(
        after_help = "Example:\n  forebay object grant iscsi://10.0.0.2/iqn.2026-11.com.example:drive 10000h/10001h \\\n    --key-file drive.key --permissions read,get-attributes --expires 1h --out reader.credential"
    )]
    Grant {
        #[command(flatten)]
        drive: DriveArgs,
        /// Object (PID/OID), or partition (PID)
        object: ObjectName,
        /// Permissions, such as read,write,append,get-attributes,set-attributes,create,remove,object-management
        #[arg(long, value_name = "NAMES", value_delimiter = ',', required = true)]
        permissions: Vec<String>,
        /// Time after which the capability is invalid
        #[arg(long, value_name = "TIME", default_value = "1h")]
        expires: TimeSpan,
        /// File to create
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Make all capabilities invalid that were granted for a partition or an object
    #[command(
        after_help = "Example:\n  forebay object revoke iscsi://10.0.0.2/iqn.2026-11.com.example:drive 10000h/10001h \\\n    --key-file drive.key"
    )]
    Revoke {
        #[command(flatten)]
        drive: DriveArgs,
        /// Object (PID/OID), or partition (PID)
        object: ObjectName,
    },
    /// Read everything on a drive, in a partition or in an object, and report what is damaged
    ///
    /// Exit code 1 if something is damaged.
    #[command(
        after_help = "Example:\n  forebay object verify iscsi://10.0.0.2/iqn.2026-11.com.example:drive --key-file drive.key"
    )]
    Verify {
        #[command(flatten)]
        drive: DriveArgs,
        /// Partition (PID), object (PID/OID) or nothing for the drive
        object: Option<ObjectName>,
    },
}

/// The drive, and how to log in and sign.
#[derive(Args, Debug)]
pub struct DriveArgs {
    /// iscsi://host[:port]/target-name[/lun] of an object drive
    pub url: String,

    /// File with the drive's master key, which signs every command
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,

    /// File with a capability that `forebay object grant` has written
    #[arg(long, value_name = "FILE", conflicts_with = "key_file")]
    pub credential: Option<PathBuf>,

    /// Security method with --key-file
    #[arg(long, value_name = "METHOD", value_enum, default_value_t = Method::Cmdrsp)]
    pub security: Method,

    /// Algorithm of the integrity check values with --key-file
    #[arg(long, value_name = "NAME", value_enum, default_value_t = IntegrityAlgorithm::HmacSha256)]
    pub algorithm: IntegrityAlgorithm,

    /// Version of the working keys, 0 to 15
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..16))]
    pub key_version: u8,

    /// OSD system ID of the drive, 40 hexadecimal digits [default: the drive reports it]
    #[arg(long, value_name = "DIGITS")]
    pub system_id: Option<String>,

    /// iSCSI name under which to log in
    #[arg(long, value_name = "NAME", default_value = "iqn.2026-11.io.forebay:object")]
    pub initiator_name: String,

    #[command(flatten)]
    pub login: Credentials,

    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// The parts of a session that the initiator's signatures protect.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Method {
    /// Only the permission, once for each session
    Capkey,
    /// Commands and statuses
    Cmdrsp,
    /// Commands, statuses and data
    Alldata,
}

/// The keyed hashes of which `--algorithm` selects one.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum IntegrityAlgorithm {
    HmacSha1,
    HmacSha256,
    Blake3,
}

/// An object as it is written on the command line: PID or PID/OID.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ObjectName(pub ObjectAddress);

impl FromStr for ObjectName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (partition, object) = match text.split_once('/') {
            None => (number(text)?, 0),
            Some((partition, object)) => (number(partition)?, number(object)?),
        };
        if partition == 0 || text.contains('/') && object == 0 {
            return Err("an identifier is not zero".into());
        }
        Ok(Self(ObjectAddress::new(partition, object)))
    }
}

/// An attribute as it is written on the command line: PAGE/NUMBER.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AttributeName(pub object::AttributeId);

impl FromStr for AttributeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (page, number_text) = text.split_once('/').ok_or("write PAGE/NUMBER")?;
        let word = |text| {
            u32::try_from(number(text)?).map_err(|_| format!("{text} has more than 32 bits"))
        };
        Ok(Self(object::AttributeId::new(word(page)?, word(number_text)?)))
    }
}

/// An attribute and its value as they are written on the command line: PAGE/NUMBER=VALUE.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AttributeValue {
    pub name: AttributeName,
    pub value: String,
}

impl FromStr for AttributeValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("write PAGE/NUMBER=VALUE")?;
        Ok(Self { name: name.parse()?, value: value.to_owned() })
    }
}

/// Parses an identifier or attribute number: decimal, hexadecimal after 0x, or hexadecimal before h.
fn number(text: &str) -> Result<u64, String> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_suffix(['h', 'H']));
    let parsed = match hexadecimal {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("`{text}` is no number: write 65536, 0x10000 or 10000h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_decimal_or_hexadecimal() {
        let address = |text: &str| text.parse::<ObjectName>().map(|name| name.0);
        assert_eq!(address("65536"), Ok(ObjectAddress::partition(0x10000)));
        assert_eq!(address("0x10000/10001h"), Ok(ObjectAddress::new(0x10000, 0x10001)));
        for wrong in ["", "0", "1/0", "1/", "x", "10000h/10001h/1", "-1"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
        let value: AttributeValue = "1h/9h=a=b".parse().unwrap();
        assert_eq!((value.name.0, value.value.as_str()), (object::AttributeId::new(1, 9), "a=b"));
        assert!("1h=x".parse::<AttributeValue>().is_err());
    }
}
