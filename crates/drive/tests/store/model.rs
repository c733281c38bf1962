//! Performs random commands on a drive and on a model in memory, with restarts in between, and compares the two.

use drive::DriveStore;
use object::{Attribute, Command, ObjectAddress, ObjectError, ObjectRequest, ObjectStore};
use sim::Rng;
use volume::Stack;

use crate::{drive_model::*, random_requests::*, support::*};

const SIZES: Sizes = Sizes { longest: 3 << 20, data: 600_000, partitions: 5, objects: 40 };

struct Script {
    rng: Rng,
    model: DriveModel,
    /// The number of the next request tag. A larger tag is newer.
    next_tag: u128,
    /// Commands that had an effect, and commands that were refused.
    performed: u64,
    refused: u64,
}

impl Script {
    async fn step(&mut self, store: &DriveStore) {
        if self.rng.chance(3) {
            return flush(store).await.unwrap();
        }
        let mut request = random_request(&mut self.rng, &self.model, SIZES);
        let is_tagged = request.command.is_unrepeatable() && self.rng.chance(20);
        if is_tagged {
            let tag = self.next_tag.to_be_bytes().to_vec();
            self.next_tag += 1;
            request.set.push(Attribute::new(0xf001_0000, 1, tag));
        }
        request.options.fua = self.rng.chance(5);
        match store.perform(request.clone()).await {
            Ok(reply) => {
                self.performed += 1;
                self.check_allowed(&request);
                self.model.check_reply(&request, &reply);
                self.model.perform(&request, reply.current.object);
                if is_tagged {
                    let again = store.perform(request).await.unwrap();
                    assert_eq!(again.current.object, reply.current.object);
                    assert_eq!(again.current.append_start, reply.current.append_start);
                }
            }
            Err(error) => {
                self.refused += 1;
                assert!(self.may_refuse(&request, &error), "{error}: {request:?}");
            }
        }
    }

    /// Fails if the drive has changed what is frozen, or the members of a linked collection by QUERY.
    fn check_allowed(&self, request: &ObjectRequest) {
        let command = request.command;
        assert!(!is_query_into_collection(request), "{request:?}");
        // A request tag is no attribute of the object.
        let changes = request.set.iter().any(|attribute| attribute.id.page != 0xf001_0000)
            || matches!(
                command,
                Command::Write { .. }
                    | Command::Append { .. }
                    | Command::Clear { .. }
                    | Command::Punch { .. }
                    | Command::Remove { .. }
                    | Command::RemoveCollection { .. }
                    | Command::RemoveMemberObjects { .. }
            );
        let is_of_partition = matches!(
            command,
            Command::RemovePartition { .. }
                | Command::CreateSnapshot { .. }
                | Command::CreateClone { .. }
        );
        let is_frozen = self.model.frozen.contains(&command.object());
        assert!(!is_frozen || !changes || is_of_partition, "frozen: {request:?}");
    }

    /// Returns true if the drive may refuse a request with this error.
    fn may_refuse(&self, request: &ObjectRequest, error: &ObjectError) -> bool {
        let address = request.command.object();
        let partition = self.model.content.partitions.get(&address.partition);
        match error {
            ObjectError::InvalidField { .. } => {
                let members = self.model.members(address);
                let member = |id: u64| ObjectAddress::new(address.partition, id);
                let partition = ObjectAddress::partition(address.partition);
                [address, partition].iter().any(|frozen| self.model.frozen.contains(frozen))
                    || members.iter().any(|id| self.model.frozen.contains(&member(*id)))
                    || is_query_into_collection(request)
            }
            // The object is a member of the collection already, or the collection was removed.
            ObjectError::InvalidAttribute { page: MEMBERSHIP_PAGE, .. } => true,
            ObjectError::Quota { .. } => partition.is_some_and(|partition| partition.quota > 0),
            ObjectError::NotEmpty { object } => !self.model.members(*object).is_empty(),
            _ => false,
        }
    }
}

/// Returns true for a QUERY whose matches are to become members of a collection.
const fn is_query_into_collection(request: &ObjectRequest) -> bool {
    matches!(request.command, Command::Query { matches: 1.., .. })
}

async fn script(seed: u64) -> (u64, u64) {
    let volume: Stack = memory(256 << 20);
    let mut store = open(&volume).await;
    let mut script = Script {
        rng: Rng::new(seed),
        model: DriveModel::default(),
        next_tag: 1,
        performed: 0,
        refused: 0,
    };
    for _ in 0..5 {
        for _ in 0..60 {
            script.step(&store).await;
        }
        assert!(content(&store).await.unwrap() == script.model.content, "seed {seed}");
        if script.rng.chance(50) {
            store.close().await.unwrap();
        } else {
            flush(&store).await.unwrap();
        }
        drop(store);
        store = open(&volume).await;
        assert!(content(&store).await.unwrap() == script.model.content, "seed {seed}, restarted");
    }
    (script.performed, script.refused)
}

#[test]
fn random_commands_have_the_effect_that_the_model_has() {
    let seeds = match std::env::var("FOREBAY_MODEL_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) => 0..SCRIPTS,
    };
    let (mut performed, mut refused) = (0, 0);
    for seed in seeds {
        println!("seed {seed}");
        let (more, refusals) = run(script(seed));
        performed += more;
        refused += refusals;
    }
    println!("{performed} commands performed, {refused} refused");
    assert!(performed > 10 * refused, "most commands have an effect");
}

/// Number of scripts in the ordinary run, which takes some seconds.
const SCRIPTS: u64 = 40;
