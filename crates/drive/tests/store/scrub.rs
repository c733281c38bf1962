//! Reading every block of all objects.

use crate::support::*;

#[test]
fn a_scrub_leaves_out_holes_however_long_they_are() {
    run(async {
        let store = open(&memory(16 << 20)).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        for start in [0, 5 << 20, 1 << 50] {
            write(&store, object, start, vec![7; 10_000]).await.expect("written");
        }
        set_length(&store, object, 1 << 59).await.expect("a longer object");
        let report = store.scrub().await.expect("read");
        assert_eq!((report.objects, report.bytes, report.damaged.len()), (1, 1 << 59, 0));
    });
}
