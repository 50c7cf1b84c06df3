// SPDX-License-Identifier: Apache-2.0

//! A copy gives the zone's answers, whatever its history.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tonic::transport::Endpoint;

use prost::Message as _;
use prost::bytes::Bytes;

use super::feed::{Cursor, Feed};
use super::pb::names_client::NamesClient;
use super::pb::{Frame, WatchRequest};
use super::*;

use crate::testing::{changes, cluster_ip, config, headless, zone_of};
use crate::zone::tests::changes::any_change;
use crate::{
    Kind, NamesChange, PodMode, Service, ServiceKey, SharedZone, Slice, SliceKey, Zone, ZoneConfig,
};

fn full() -> ZoneConfig {
    ZoneConfig {
        pods: PodMode::Verified,
        zonal: true,
        ignore_empty: true,
        namespaces: ["testns", "podns"].map(str::to_owned).into(),
        ..config()
    }
}

fn request(digest: Vec<u8>) -> WatchRequest {
    WatchRequest {
        digest,
        ..WatchRequest::default()
    }
}

fn shared(zone: Zone) -> Arc<SharedZone> {
    Arc::new(SharedZone::new(zone))
}

fn empty() -> Arc<SharedZone> {
    shared(Zone::new(config(), 0).unwrap())
}

/// The contents of the zone files, without the serial.
fn text(zone: &SharedZone) -> String {
    let config = zone.read().config().clone();
    let names = config.zones.iter().chain(&config.reverse);
    names
        .map(|name| crate::zone_file::render(zone, name, 1))
        .collect()
}

#[test]
fn a_copy_from_disk_is_the_zone() {
    let zone = shared(zone_of(full(), changes()));
    let saved = save(&zone);
    let copy = empty();
    load(&copy, &saved).unwrap();
    assert!(copy.read().is_synced());
    assert_eq!(copy.read().config(), zone.read().config());
    assert_eq!(text(&copy), text(&zone));
    assert_eq!(digest(&copy.read()), digest(&zone.read()));
}

#[test]
fn a_copy_of_imported_names_is_the_zone() {
    let zone = shared(crate::zone::tests::clusterset::zone());
    let copy = empty();
    load(&copy, &save(&zone)).unwrap();
    assert_eq!(copy.read().config(), zone.read().config());
    assert_eq!(text(&copy), text(&zone));
    assert!(text(&copy).contains("db-0.us-1.db.testns.svc A 10.2.0.1"));
    assert_eq!(digest(&copy.read()), digest(&zone.read()));
}

/// An agent gets the names of the cluster that its credential names, whatever it says itself.
#[tokio::test]
async fn agents_get_the_names_of_their_own_cluster() {
    let feeds = ClusterFeeds::default();
    let mut tasks = tokio::task::JoinSet::new();
    for cluster in ["eu-1", "us-1"] {
        let service = NamesChange::Service(cluster_ip(cluster, &["10.112.0.1"]));
        let zone = zone_of(crate::zone::tests::clusterset::config(), [service]);
        tasks.spawn(feeds.insert(cluster.into(), shared(zone)));
    }
    let service = NamesService::of_clusters(feeds.clone());
    let said = |cluster: &str| WatchRequest {
        knows_clusterset: true,
        cluster: cluster.to_owned(),
        ..WatchRequest::default()
    };
    let peer = |name: &str| portolan_runtime::PeerCluster(name.into());
    let name_of = |feed: &Feed| feed.zone().read().services()[0].name.clone();
    let eu = service.feed(Some(&peer("eu-1")), &said("us-1")).unwrap();
    assert_eq!(name_of(&eu), "eu-1");
    let us = service.feed(None, &said("us-1")).unwrap();
    assert_eq!(name_of(&us), "us-1");
    let code = |feed: Result<_, tonic::Status>| feed.map(drop).unwrap_err().code();
    let unknown = service.feed(Some(&peer("ap-1")), &said("us-1"));
    assert_eq!(code(unknown), tonic::Code::Unavailable);
    // It would name hosts without their clusters.
    let old = service.feed(Some(&peer("eu-1")), &WatchRequest::default());
    assert_eq!(code(old), tonic::Code::Unimplemented);
    feeds.remove("eu-1");
    let gone = service.feed(Some(&peer("eu-1")), &said("eu-1"));
    assert_eq!(code(gone), tonic::Code::Unavailable);
}

/// An agent whose stream stayed open would wait for ever: a cluster that comes back has a new feed.
#[tokio::test(start_paused = true)]
async fn streams_end_when_their_cluster_leaves() {
    let feeds = ClusterFeeds::default();
    let zone = zone_of(crate::zone::tests::clusterset::config(), []);
    let following = tokio::spawn(feeds.insert("eu-1".into(), shared(zone)));
    let mut client = NamesClient::new(NamesService::of_clusters(feeds.clone()));
    let watch = WatchRequest {
        knows_clusterset: true,
        cluster: "eu-1".to_owned(),
        ..WatchRequest::default()
    };
    let mut frames = client.watch(watch).await.unwrap().into_inner();
    let mut follower = Follower::new(empty());
    while !follower
        .apply_frame(frames.message().await.unwrap().unwrap())
        .unwrap()
    {}
    feeds.remove("eu-1");
    following.abort();
    let end = tokio::time::timeout(Duration::from_secs(60), frames.message()).await;
    let status = end.expect("the end of the stream").unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
    assert_eq!(frames.message().await.unwrap(), None);
}

#[test]
fn a_truncated_file_changes_nothing() {
    let saved = save(&shared(zone_of(full(), changes())));
    for bytes in [
        &b""[..],
        &saved[..20],
        &saved[..saved.len() - 1],
        &saved[1..],
    ] {
        let copy = empty();
        assert!(load(&copy, bytes).is_err());
        assert!(!copy.read().is_synced());
    }
    let mut flipped = saved;
    let last = flipped.len() - 1;
    flipped[last] ^= 1;
    assert!(load(&empty(), &flipped).is_err());
}

/// Applies changes one by one to a zone, and their items to a copy: both stay equal.
fn assert_follows(changes: impl IntoIterator<Item = NamesChange>) {
    let zone = shared(zone_of(full(), []));
    let copy = empty();
    load(&copy, &save(&zone)).unwrap();
    let mut follower = Follower::new(Arc::clone(&copy));
    for change in changes {
        let subjects = zone.apply([change]).subjects;
        let now = zone.read();
        let items = subjects
            .iter()
            .filter_map(|one| encode::of_subject(&now, one));
        let items = items.collect();
        drop(now);
        follower.apply_frame(Frame { items }).unwrap();
        assert_eq!(text(&copy), text(&zone));
    }
}

proptest! {
    /// Deltas by subject give the same copy as the whole zone.
    #[test]
    fn a_copy_that_follows_is_the_zone(all in prop::collection::vec(any_change(), 0..40)) {
        assert_follows(all);
    }
}

/// One of two slices with the same endpoint moves to another Service. The first one's records stay,
/// so it makes no item.
#[test]
fn a_slice_that_changes_hands_leaves_the_rest_of_its_service() {
    let slice = |name: &str, service: &str, address: &str| {
        NamesChange::Slice(Slice {
            key: SliceKey {
                namespace: "testns".to_owned(),
                name: name.to_owned(),
            },
            service: service.to_owned(),
            cluster: None,
            endpoints: vec![crate::Endpoint {
                addresses: vec![address.parse().unwrap()],
                ready: true,
                hostname: None,
                pod: None,
                zone: None,
            }],
            ports: Vec::new(),
        })
    };
    assert_follows([
        slice("a", "a", "fd00::2"),
        slice("b", "a", "fd00::2"),
        slice("a", "b", "10.0.0.1"),
    ]);
}

/// A Service without endpoints has no records under `ignore empty_service`, so its end changes none.
#[test]
fn a_service_without_records_is_deleted_from_copies() {
    let key = ServiceKey::new("testns", "b");
    let service = |kind| {
        NamesChange::Service(Service {
            key: key.clone(),
            kind,
            ports: Vec::new(),
            publish_not_ready: false,
        })
    };
    assert_follows([
        service(Kind::Headless),
        service(Kind::ClusterIp { ips: Vec::new() }),
        NamesChange::ServiceRemoved(key.clone()),
    ]);
}

#[tokio::test]
async fn a_copy_follows_over_grpc_and_is_sent_nothing_that_it_has() {
    let zone = shared(zone_of(full(), changes()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let (service, following) = NamesService::new(Arc::clone(&zone));
    tokio::spawn(following);
    let server = tonic::transport::Server::builder().add_service(service);
    let task = tokio::spawn(server.serve_with_incoming(incoming));
    let channel = Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .connect_lazy();
    let mut client = NamesClient::new(channel);

    let copy = empty();
    let mut follower = Follower::new(Arc::clone(&copy));
    let watch = client.watch(WatchRequest::default()).await.unwrap();
    let mut frames = watch.into_inner();
    while !follower
        .apply_frame(frames.message().await.unwrap().unwrap())
        .unwrap()
    {}
    assert_eq!(text(&copy), text(&zone));

    zone.apply([NamesChange::ServiceRemoved(crate::ServiceKey::new(
        "testns", "svc1",
    ))]);
    while !follower
        .apply_frame(frames.message().await.unwrap().unwrap())
        .unwrap()
    {}
    assert_eq!(text(&copy), text(&zone));

    let known = digest(&copy.read()).to_vec();
    let watch = client.watch(request(known)).await.unwrap();
    let first = watch.into_inner().message().await.unwrap().unwrap();
    assert_eq!(first.items.len(), 1, "{first:?}");
    task.abort();
}

/// A feed with its task.
fn running(feed: Feed) -> Arc<Feed> {
    let feed = Arc::new(feed);
    tokio::spawn(Arc::clone(&feed).run());
    feed
}

/// The next message of a stream.
async fn next(feed: &Feed, cursor: &mut Cursor) -> Bytes {
    loop {
        let news = feed.news();
        if let Some(frame) = feed.next(cursor) {
            return frame;
        }
        news.await;
    }
}

/// Follows a stream until its next Commit.
async fn follow(feed: &Feed, cursor: &mut Cursor, follower: &mut Follower) -> Vec<Bytes> {
    let mut sent = Vec::new();
    loop {
        let bytes = next(feed, cursor).await;
        sent.push(bytes.clone());
        let frame = Frame::decode(bytes.slice(5..)).unwrap();
        if follower.apply_frame(frame).unwrap() {
            return sent;
        }
    }
}

fn many(services: usize) -> impl Iterator<Item = NamesChange> {
    let service = |i| NamesChange::Service(cluster_ip(&format!("s{i}"), &["10.96.0.1"]));
    (0..services).map(service)
}

#[tokio::test(start_paused = true)]
async fn streams_share_their_messages() {
    let zone = shared(zone_of(full(), many(700)));
    let feed = running(Feed::new(Arc::clone(&zone)));
    let copies = [empty(), empty()];
    let mut cursors = [(); 2].map(|()| Cursor::Begin(vec![]));
    let mut followers = copies.clone().map(Follower::new);
    for change in [None, Some(NamesChange::Service(headless("more")))] {
        zone.apply(change);
        let mut sent = Vec::new();
        for (cursor, follower) in cursors.iter_mut().zip(&mut followers) {
            sent.push(follow(&feed, cursor, follower).await);
        }
        let place = |frames: &[Bytes]| frames.iter().map(|f| f.as_ptr()).collect::<Vec<_>>();
        assert_eq!(place(&sent[0]), place(&sent[1]));
        for copy in &copies {
            assert_eq!(text(copy), text(&zone));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_falls_far_behind_is_sent_the_whole_zone() {
    let zone = shared(zone_of(full(), many(10)));
    let feed = running(Feed::forgetful(Arc::clone(&zone), 1_000));
    let (copy, mut cursor) = (empty(), Cursor::Begin(vec![]));
    let mut follower = Follower::new(Arc::clone(&copy));
    follow(&feed, &mut cursor, &mut follower).await;
    for round in 0..60 {
        let news = feed.news();
        zone.apply([NamesChange::Service(headless(&format!("more{round}")))]);
        news.await;
    }
    let sent = follow(&feed, &mut cursor, &mut follower).await;
    assert_eq!(text(&copy), text(&zone));
    assert!(sent.len() < 5, "{}", sent.len());
}

/// After a new listing of everything.
#[tokio::test(start_paused = true)]
async fn a_replaced_zone_is_sent_whole_and_an_equal_one_as_a_commit() {
    let zone = shared(zone_of(full(), changes()));
    let feed = running(Feed::new(Arc::clone(&zone)));
    let (copy, mut cursor) = (empty(), Cursor::Begin(vec![]));
    let mut follower = Follower::new(Arc::clone(&copy));
    follow(&feed, &mut cursor, &mut follower).await;
    zone.replace(zone_of(full(), many(5)));
    follow(&feed, &mut cursor, &mut follower).await;
    assert_eq!(text(&copy), text(&zone));
    let mut again = Cursor::Begin(digest(&copy.read()).to_vec());
    let sent = next(&feed, &mut again).await;
    let frame = Frame::decode(sent.slice(5..)).unwrap();
    assert_eq!(frame.items.len(), 1, "{frame:?}");
}

proptest! {
    /// A copy that was made while the zone changed is the zone once it has these changes too.
    #[test]
    fn a_copy_made_while_the_zone_changes_catches_up(
        before in prop::collection::vec(any_change(), 0..40),
        meanwhile in prop::collection::vec(any_change(), 0..20),
        at in 0_usize..20,
    ) {
        let zone = shared(zone_of(full(), before.into_iter().chain(many(100))));
        let (copy, mut items) = (empty(), encode::all_items(&*zone));
        let mut sent: Vec<_> = items.by_ref().take(at).collect();
        let subjects = zone.apply(meanwhile).subjects;
        sent.extend(items);
        sent.push(encode::commit(1));
        sent.extend(encode::items(&*zone, subjects.into_iter()));
        let mut follower = Follower::new(Arc::clone(&copy));
        follower.apply_frame(Frame { items: sent }).unwrap();
        prop_assert_eq!(text(&copy), text(&zone));
    }
}

/// A change that waits for a reader keeps all later readers waiting, so none may hold the zone for long.
#[tokio::test(start_paused = true)]
async fn whole_zones_are_encoded_piece_by_piece() {
    let zone = shared(zone_of(full(), many(2_000)));
    let before = zone.reads();
    let _ = save(&zone);
    let saved = zone.reads() - before;
    let (feed, mut cursor) = (running(Feed::new(Arc::clone(&zone))), Cursor::Begin(vec![]));
    let mut follower = Follower::new(empty());
    follow(&feed, &mut cursor, &mut follower).await;
    let streamed = zone.reads() - before - saved;
    assert!(saved > 20 && streamed > 20, "{saved}, {streamed}");
}
