// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::conformance::Situation;
use crate::rig::{Family, Protocol};

fn says(name: &str) -> String {
    let row = Row::all().into_iter().find(|row| row.to_string() == name);
    expect(&row.unwrap_or_else(|| panic!("no row {name}"))).to_string()
}

/// The sentences of upstream's documentation, one row each.
#[test]
fn says_what_the_documentation_says() {
    let cases = [
        // Everything external is masqueraded under policy Cluster.
        (
            "nodeport/etp-cluster/v4/tcp/from-outside/both",
            "answered by here (source gateway here) and there (source node here)",
        ),
        // The client's address is kept under policy Local, and no other node is asked.
        (
            "loadbalancer/etp-local/v6/udp/from-outside/both",
            "answered by here (source asker)",
        ),
        (
            "nodeport/etp-local/v4/tcp/from-outside/there-only",
            "dropped",
        ),
        ("nodeport/etp-local/v4/tcp/from-outside/nowhere", "refused"),
        // The short way round for pods and the node itself.
        (
            "externalip/etp-local/v4/tcp/from-pod/there-only",
            "answered by there (source asker)",
        ),
        (
            "externalip/etp-local/v4/tcp/from-node/there-only",
            "answered by there (source node here)",
        ),
        // A pod of another node has the endpoints of the node that it asks.
        (
            "nodeport/etp-local/v4/tcp/from-pod-there/both",
            "answered by here (source asker)",
        ),
        (
            "nodeport/etp-local/v4/tcp/from-pod-there/there-only",
            "refused",
        ),
        (
            "nodeport/etp-cluster/v4/tcp/from-pod-there/there-only",
            "answered by there (source node here)",
        ),
        // There is none for cluster IPs.
        ("clusterip/itp-local/v4/udp/from-pod/there-only", "dropped"),
        ("clusterip/itp-local/v4/udp/from-node/there-only", "dropped"),
        // Hairpin.
        (
            "clusterip/itp-cluster/v4/tcp/from-endpoint/both",
            "answered by here (source gateway here) and there (source asker)",
        ),
        // Endpoints that end stand in for ready ones: in the cluster when none is ready there, on
        // the node when none is ready on the node.
        (
            "clusterip/itp-cluster/v4/tcp/from-pod/here-terminating",
            "answered by there (source asker)",
        ),
        (
            "nodeport/etp-local/v4/tcp/from-outside/here-terminating",
            "answered by here (source asker)",
        ),
        // Hints hold for the cluster list only, and only when every ready endpoint has one.
        (
            "clusterip/itp-cluster/v4/tcp/from-pod/crossed-hints",
            "answered by there (source asker)",
        ),
        (
            "clusterip/itp-local/v4/tcp/from-pod/crossed-hints",
            "answered by here (source asker)",
        ),
        (
            "clusterip/itp-cluster/v4/tcp/from-pod/part-hinted",
            "answered by here (source asker) and there (source asker)",
        ),
        ("clusterip/itp-local/v4/tcp/from-pod/none-ready", "refused"),
    ];
    for (row, expected) in cases {
        assert_eq!(says(row), expected, "{row}");
    }
}

#[test]
fn rows_have_names_of_their_own_and_cover_every_dimension() {
    let rows = Row::all();
    let names: BTreeSet<String> = rows.iter().map(ToString::to_string).collect();
    assert_eq!(names.len(), rows.len());
    assert!(rows.len() >= 60);
    for kind in Kind::ALL {
        for policy in Policy::ALL {
            for family in Family::ALL {
                for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                    assert!(rows.iter().any(|row| row.kind == kind
                        && row.policy == policy
                        && row.family == family
                        && row.protocol == protocol));
                }
            }
        }
    }
    for source in Source::ALL {
        assert!(rows.iter().any(|row| row.source == source));
    }
    for situation in Situation::ALL {
        assert!(rows.iter().any(|row| row.situation == situation));
    }
}

#[test]
fn only_answers_that_were_expected_are_right() {
    use crate::conformance::Observation;
    use crate::rig::RequestError::{Refused, TimedOut};
    let name = "nodeport/etp-local/v4/tcp/from-node/both";
    let row = Row::all().into_iter().find(|row| row.to_string() == name);
    let row = row.unwrap();
    let expected = expect(&row);
    let seen = |answers: &[(Place, Seen)], error| Observation {
        answers: answers.iter().map(|(p, s)| (*p, [*s].into())).collect(),
        error,
        evidence: Vec::new(),
    };
    let (here, there) = (Place::Here, Place::There);
    let node = Seen::Node(here);
    for own in [node, Seen::Gateway(here)] {
        assert!(row.judge(&expected, &seen(&[(here, own), (there, node)], None)));
    }
    for wrong in [
        seen(&[(here, node)], None),
        seen(&[(here, node), (there, Seen::Gateway(here))], None),
        seen(&[(here, node), (there, Seen::Asker)], None),
        seen(&[(here, node), (there, node)], Some(TimedOut)),
        seen(&[], Some(Refused)),
    ] {
        assert!(!row.judge(&expected, &wrong), "{wrong}");
    }
    assert!(row.judge(&Expectation::Dropped, &seen(&[], Some(TimedOut))));
    assert!(!row.judge(&Expectation::Dropped, &seen(&[], Some(Refused))));
    assert!(row.judge(&Expectation::Refused, &seen(&[], Some(Refused))));
    assert!(!row.judge(&Expectation::Refused, &seen(&[], Some(TimedOut))));
    assert!(!row.judge(&Expectation::Refused, &seen(&[(here, node)], Some(Refused))));
}
