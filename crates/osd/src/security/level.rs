//! The key that signs the capability of a command (OSD-2, 4.11.5; our definition where the text was not available).

use object::{Command, KeyToSet, SetKeyRequest};

/// Names the key whose authentication key signs the capability of a command: the level of the
/// command decides it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum SigningKey {
    Master,
    Root,
    Partition {
        partition: u64,
    },
    /// One of the 16 working keys of a partition. KEY VERSION of the capability selects which.
    Working {
        partition: u64,
    },
}

impl SigningKey {
    /// Returns the key that signs the capability of a command:
    ///
    /// | command | key |
    /// |---------|-----|
    /// | SET KEY of the root key, SET MASTER KEY | master |
    /// | SET KEY of a partition key, commands on the root, and those that create, remove or restore a partition | root |
    /// | SET KEY of a working key, all other commands on a partition | partition |
    /// | commands on a user object or a collection, and those that create one | working |
    #[must_use]
    pub const fn for_command(command: &Command) -> Self {
        match *command {
            Command::SetKey(SetKeyRequest { key: KeyToSet::Root, .. })
            | Command::SetMasterKey { .. } => Self::Master,
            Command::SetKey(SetKeyRequest { key: KeyToSet::Partition { .. }, .. })
            | Command::CreatePartition { .. }
            | Command::RemovePartition { .. }
            | Command::CreateSnapshot { .. }
            | Command::CreateClone { .. }
            | Command::RestorePartitionFromSnapshot { .. } => Self::Root,
            _ => {
                let object = command.object();
                match object.partition {
                    0 => Self::Root,
                    partition if object.object == 0 && !command.creates() => {
                        Self::Partition { partition }
                    }
                    partition => Self::Working { partition },
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use object::{CopyMethod, ListRequest, ObjectAddress};

    use super::*;

    #[test]
    fn each_kind_of_command_has_the_key_of_its_level() {
        let set =
            |key| Command::SetKey(SetKeyRequest { key, key_identifier: [0; 7], seed: [0; 20] });
        let list = ListRequest::default();
        let object = ObjectAddress::new(7, 8);
        let partition = 7;
        let cases = [
            (set(KeyToSet::Root), SigningKey::Master),
            (set(KeyToSet::Partition { partition }), SigningKey::Root),
            (set(KeyToSet::Working { partition, version: 3 }), SigningKey::Partition { partition }),
            (Command::FormatOsd { capacity: 0 }, SigningKey::Root),
            (Command::List { partition: 0, list }, SigningKey::Root),
            (Command::List { partition, list }, SigningKey::Partition { partition }),
            (Command::CreatePartition { requested: partition }, SigningKey::Root),
            (Command::RemovePartition { partition, with_contents: true }, SigningKey::Root),
            (
                Command::CreateClone { source: partition, requested: 0, method: CopyMethod(0) },
                SigningKey::Root,
            ),
            (
                Command::Create { partition, requested: 0, count: 1 },
                SigningKey::Working { partition },
            ),
            (Command::Read { object, length: 1, start: 0 }, SigningKey::Working { partition }),
            (
                Command::RemoveCollection { collection: object, force: false },
                SigningKey::Working { partition },
            ),
        ];
        for (command, key) in cases {
            assert_eq!(SigningKey::for_command(&command), key, "{command:?}");
        }
    }
}
