// SPDX-License-Identifier: Apache-2.0

//! Imports as DNS names them.

use portolan_mcs::WantedSlice;

use super::*;

const DOWN: ClusterState = ClusterState {
    step: 0,
    drained: false,
    lost: true,
};

/// `web` of the clusters `a` and `b`, headless, with one pod each.
fn headless(set: &str) -> Pipeline {
    let mut pipeline = Pipeline::default();
    pipeline.set_policies(policies(set, &[]));
    pipeline.set_states(full());
    pipeline.follow_names();
    for cluster in CLUSTERS {
        pipeline.apply(namespace(cluster));
    }
    for cluster in ["a", "b"] {
        let host = Endpoint {
            hostname: Some("web-0".into()),
            ..Endpoint::new(pod(cluster, 1))
        };
        let unready = Endpoint {
            ready: false,
            ..Endpoint::new(pod(cluster, 2))
        };
        // No cluster has this network.
        let forged = Endpoint::new(pod("nobody", 3));
        pipeline.apply(slice(cluster, "web", vec![host, unready, forged]));
        let facts = ServiceFacts {
            kind: ServiceType::Headless,
            ..facts()
        };
        pipeline.apply(export(cluster, "web", facts));
    }
    pipeline.flush();
    pipeline
}

fn web(cluster: &str) -> ObjectKey {
    key(cluster, "web@clusterset")
}

/// The clusters whose endpoints an import has.
fn clusters(pipeline: &Pipeline, importing: &str) -> Vec<String> {
    let named = pipeline.named(&web(importing)).unwrap();
    named.endpoints.keys().map(|id| id.to_string()).collect()
}

#[test]
fn a_headless_import_names_the_ready_endpoints_of_each_cluster() {
    let mut pipeline = headless("{}");
    assert_eq!(pipeline.take_renamed(), CLUSTERS.map(web).into());
    let named = pipeline.named(&web("c")).unwrap();
    assert_eq!((named.kind, named.ips), (ImportKind::Headless, vec![]));
    assert_eq!(clusters(&pipeline, "c"), ["a", "b"]);
    for (cluster, endpoints) in named.endpoints {
        let expected = NamedEndpoint {
            address: pod(&cluster, 1),
            hostname: Some("web-0".into()),
            ports: [(("http".into(), Protocol::Tcp), 8080)].into(),
        };
        assert_eq!(endpoints, [expected], "{cluster}");
    }
    // One that is ready now.
    let ready = vec![Endpoint::new(pod("a", 2))];
    pipeline.apply(slice("a", "web", ready));
    pipeline.flush();
    assert_eq!(pipeline.take_renamed(), CLUSTERS.map(web).into());
    assert_eq!(pipeline.take_renamed(), BTreeSet::new());
}

#[test]
fn an_import_with_addresses_names_them_and_no_endpoint() {
    let mut pipeline = headless("{}");
    pipeline.apply(export("c", "api", facts()));
    pipeline.apply(put(Object::Service(service("c", "api"))));
    pipeline.apply(slice("c", "api", vec![Endpoint::new(pod("c", 1))]));
    allocate(&mut pipeline);
    pipeline.flush();
    let named = pipeline.named(&key("a", "api@clusterset")).unwrap();
    let v6: IpAddr = "fd00:112::69".parse().unwrap();
    assert_eq!(named.ips, [[10, 112, 0, 105].into(), v6]);
    assert_eq!((named.ports.len(), named.ports[0].number), (1, 80));
    assert!(named.endpoints.is_empty());
}

#[test]
fn the_hosts_of_a_lost_cluster_leave_unless_all_are_lost() {
    let mut pipeline = headless("{}");
    pipeline.take_renamed();
    let lost = |names: &[&str]| {
        let mut states = full();
        names
            .iter()
            .for_each(|name| _ = states.insert(Arc::from(*name), DOWN));
        states
    };
    let drained = ClusterState {
        step: 0,
        drained: true,
        lost: false,
    };
    let mut states = full();
    states.insert("a".into(), drained);
    pipeline.set_states(states);
    pipeline.flush();
    assert_eq!(clusters(&pipeline, "c"), ["a", "b"], "only a loss counts");
    pipeline.set_states(lost(&["a"]));
    pipeline.flush();
    assert_eq!(pipeline.take_renamed(), CLUSTERS.map(web).into());
    assert!(pipeline.take_endpoints_changed());
    assert_eq!(clusters(&pipeline, "c"), ["b"]);
    pipeline.set_states(lost(&["a", "b"]));
    pipeline.flush();
    assert_eq!(clusters(&pipeline, "c"), ["a", "b"], "the last known ones");
    let mut pipeline = headless("{loss: {lastResort: Refuse}}");
    pipeline.set_states(lost(&["a", "b"]));
    pipeline.flush();
    assert_eq!(clusters(&pipeline, "c"), [""; 0]);
}

#[test]
fn slices_are_those_that_the_set_asks_for() {
    for (asked, expected) in [("Off", 0), ("Headless", 2), ("All", 3)] {
        let mut pipeline = headless(&format!("{{endpointSlices: {asked}}}"));
        pipeline.apply(export("c", "api", facts()));
        pipeline.apply(slice("c", "api", vec![Endpoint::new(pod("c", 1))]));
        pipeline.flush();
        let slices = pipeline.mcs_slices(&"c".into());
        assert_eq!(slices.len(), expected, "{asked}");
        let headless = |slice: &&WantedSlice| &*slice.import.name == "web";
        for WantedSlice { object, .. } in slices.values().filter(headless) {
            let first = &object["endpoints"][0];
            assert_eq!(first["hostname"], "web-0", "{object:#}");
            assert_eq!(object["endpoints"].as_array().unwrap().len(), 2);
        }
    }
}
