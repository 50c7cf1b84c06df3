// SPDX-License-Identifier: Apache-2.0

//! The pace of clusters that send without end.

use prost::Message as _;

use super::*;
use crate::edge::pace;

#[tokio::test(start_paused = true)]
async fn a_cluster_that_changes_all_the_time_is_taken_in_at_a_pace() {
    let (centre, mut objects) = (Centre::new(), outbox([namespace("shop")]));
    let mut edge = centre.connect("one").await;
    edge.welcome(&mut objects).await;
    let start = Instant::now();
    for number in 0..20 {
        objects
            .apply(&put(namespace(&format!("n-{number}"))))
            .unwrap();
        edge.send(&mut objects).await.unwrap();
    }
    assert!(
        start.elapsed() >= pace::TRANSITION * 19,
        "{:?}",
        start.elapsed()
    );
}

/// A part of 1 MiB.
fn large_part() -> v1::EdgeObjects {
    // A field of a newer version, with 1 MiB.
    let mut bytes = vec![0xfa, 0x3f, 0x80, 0x80, 0x40];
    bytes.resize(bytes.len() + (1 << 20), 0);
    let id = v1::ObjectId {
        kind: v1::ObjectKind::Namespace.into(),
        name: "shop".to_owned(),
        ..v1::ObjectId::default()
    };
    let named = v1::ClusterObject {
        id: Some(id),
        ..v1::ClusterObject::default()
    };
    bytes.extend(named.encode_to_vec());
    v1::EdgeObjects {
        put: vec![bytes.into()],
        ..v1::EdgeObjects::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_sends_without_end_is_slowed_down_over_all_its_streams() {
    let centre = Centre::new();
    let begin = Instant::now();
    for (parts, at_least) in [(60, 0), (20, 15), (20, 35)] {
        let mut edge = centre.connect("one").await;
        edge.welcome(&mut Outbox::default()).await;
        for _ in 0..parts {
            edge.say(Message::Objects(large_part())).await;
        }
        // Ends the stream.
        edge.say(Message::Hello(v1::EdgeHello::default())).await;
        let ended = timeout(PATIENCE * 10, edge.answers.recv()).await.unwrap();
        assert_eq!(ended.unwrap().unwrap_err().code(), Code::InvalidArgument);
        let took = begin.elapsed();
        let range = Duration::from_secs(at_least)..Duration::from_secs(at_least + 5);
        assert!(range.contains(&took), "{took:?} of {range:?}");
    }
}
