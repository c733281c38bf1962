//! A drive on a runtime with one thread, which the disk needs as well.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use futures_util::future::join_all;
use object::Attribute;
use volume::{DelayVolume, Latency, Stack};

use crate::support::*;

/// Time limit of the test, which takes a few seconds. A thread that waits for itself would wait for ever.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn commands_on_the_only_thread_do_not_wait_for_tables_that_grow() {
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        run(async {
            let latency = Latency { flush: Duration::from_millis(20), ..Latency::default() };
            let volume: Stack = Arc::new(DelayVolume::new(memory(256 << 20), latency));
            let store = open(&volume).await;
            let partition = create_partition(&store).await;
            let client = async |number| {
                for at in 0..100 {
                    let object = create(&store, partition).await;
                    set(&store, object, Attribute::new(0x1_0000, 1, vec![7; 512])).await.unwrap();
                    write(&store, object, 0, vec![7; 4096]).await.unwrap();
                    // Some clients wait for a commit while the others read rows.
                    if (at + number) % 8 == 0 {
                        flush(&store).await.unwrap();
                    }
                }
            };
            join_all((0..32).map(client)).await;
            store.close().await.unwrap();
        });
        done.send(()).unwrap();
    });
    ended.recv_timeout(LIMIT).expect("the commands end");
}
