//! Sends PDUs with random headers to the initiator session.

use bytes::Bytes;
use iscsi::{Cid, Itt, codec::PduFrame};
use proptest::prelude::*;

use crate::scene::Scene;

proptest! {
    /// The random headers have the tags of existing tasks, or tags close to those.
    #[test]
    fn hostile_headers_do_no_harm(
        headers in proptest::collection::vec((any::<[u8; 48]>(), 0u8..0x40, 0u8..3), 1..20),
        data in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut scene = Scene::new();
        let tags = [scene.read(1000), scene.write(5000), Itt::NONE];
        for (mut bhs, opcode, tag) in headers {
            bhs[0] = opcode;
            bhs[16..20].copy_from_slice(&tags[usize::from(tag)].0.to_be_bytes());
            // Set valid sequence numbers: otherwise their checks would reject the PDU before other
            // code sees it.
            bhs[24..28].copy_from_slice(&scene.stat_sn.to_be_bytes());
            let data = Bytes::copy_from_slice(&data);
            let ahs = Bytes::new();
            let frame = PduFrame { bhs, ahs, data, is_shared: false, data_digest_error: false };
            if scene.session.handle_frame(Cid(0), frame, scene.now).is_err() {
                break;
            }
            scene.sent();
        }
        while scene.event().is_some() {}
        prop_assert!(scene.session.take_unanswered().len() <= 2);
    }
}
