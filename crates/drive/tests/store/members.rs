//! Tests of collections, and of the commands on their members.

use std::time::Duration;

use object::{Attribute, Command};

use crate::support::*;

const MIB: u64 = 1 << 20;

#[test]
fn a_partition_with_more_collections_than_one_step_removes_is_removed() {
    run(async {
        let store = open(&memory(64 * MIB)).await;
        let partition = create_partition(&store).await;
        let mut collections = Vec::new();
        for _ in 0..300 {
            let command = Command::CreateCollection { partition, requested: 0 };
            collections.push(perform(&store, command).await.unwrap().current.object.object);
        }
        for some in collections.chunks(60) {
            let object = create(&store, partition).await;
            for (id, number) in some.iter().zip(1..) {
                let member = Attribute::new(4, number, id.to_be_bytes().to_vec());
                set(&store, object, member).await.unwrap();
            }
        }
        let command = Command::RemovePartition { partition, with_contents: true };
        let removed = tokio::time::timeout(Duration::from_secs(60), perform(&store, command)).await;
        removed.expect("it ends").unwrap();
        let statistics = store.statistics();
        assert_eq!((statistics.partitions, statistics.objects), (0, 0));
    });
}
