// SPDX-License-Identifier: Apache-2.0

//! The references of flags and metrics in `docs/reference`.

use std::sync::Arc;
use std::time::Duration;

use clap::CommandFactory as _;
use portolan_catalog::{Catalog, Reason};
use portolan_dns::{LagCollector, Metrics, NamesChange, Server, SharedZone, Zone, ZoneConfig};
use portolan_federate::state::{Fleet, Settings};
use portolan_reference::samples;
use portolan_runtime::{CredentialCollector, register_process};
use portolan_select::FederationCounts;
use portolan_serve::{RecordProblem as AgentProblem, Registry as Sessions};
use portolan_source::kubernetes::Stats;
use portolan_source::{Contact, ContactCollector, ProblemLog, edge};
use prometheus_client::registry::Registry;

use crate::args::Cli;
use crate::cluster::ClusterMetrics;
use crate::clusters::{ClusterCollector, ClusterSources, ClusterStates, SourceContact};
use crate::deletions::HoldCollector;
use crate::edges::UplinkCollector;
use crate::mcs::WriteCounts;
use crate::metrics::{CatalogMetrics, SessionCollector, SourceCollector};
use crate::relay::RelayCollector;
use crate::reviews::ReviewMetrics;

#[test]
fn the_reference_of_flags_is_that_of_the_code() {
    let page = portolan_reference::flags(Cli::command());
    portolan_reference::compare("controller-flags.md", "Flags of portolan-controller", &page);
}

/// Returns the meaning of a reason of a problem of an object. A match, so that no reason is forgotten.
fn meaning(reason: Reason) -> &'static str {
    match reason {
        Reason::Malformed => {
            "The object cannot be read at all. Its last good version stays in force."
        }
        Reason::InvalidValue => "A field has an unusable value. The rest of the object is used.",
        Reason::WrongFamily => "An address is of another family than its field asks for.",
        Reason::Conflict => {
            "Another Service or load balancer has this address and port. The message names it."
        }
        Reason::TooMany => "The object has more of something than a table can hold.",
        Reason::NodeAddress => {
            "An external or load-balancer IP is an address of a Node. It is served, and bound nowhere else."
        }
        Reason::AddressOutsideNetwork => {
            "An exported endpoint lies outside the networks of its cluster. No import uses it."
        }
        Reason::Unsupported => {
            "The object asks for a setting that does not exist here. The rest of the object is used."
        }
    }
}

const REASONS: [Reason; 8] = [
    Reason::Malformed,
    Reason::InvalidValue,
    Reason::WrongFamily,
    Reason::Conflict,
    Reason::TooMany,
    Reason::NodeAddress,
    Reason::AddressOutsideNetwork,
    Reason::Unsupported,
];

/// Reasons for which agents refuse records, and for which connections and streams are refused.
const MEANINGS: [(&str, &str); 28] = [
    ("missing", "A field that must be set is absent."),
    (
        "unknown",
        "A value is newer than the agent. Upgrade the agent.",
    ),
    ("length", "A list or a byte string has the wrong length."),
    ("range", "A number is out of range."),
    ("unsorted", "A list is not sorted, or has duplicates."),
    ("family", "An address is of the other family."),
    (
        "base",
        "A patch refers to a record that the agent does not have. It asks for the whole table.",
    ),
    (
        "other",
        "Any other reason; the text is in `portolanctl nodes -o json`.",
    ),
    (
        "accept",
        "The system accepts no more connections: out of descriptors or memory.",
    ),
    ("limit", "Too many connections (`--max-connections`)."),
    (
        "handshake",
        "TLS failed: no certificate, a wrong or expired one, or no TLS at all.",
    ),
    ("handshake_timeout", "TLS took too long."),
    (
        "no_credential",
        "Neither a certificate nor a token was shown.",
    ),
    (
        "certificate",
        "The certificate is good but names neither a node, a relay nor an edge controller.",
    ),
    ("token", "The token is not good; the log says why."),
    (
        "rate",
        "Too many tokens arrive from one source (`--token-checks-per-source`).",
    ),
    ("expired", "The certificate or token has expired."),
    (
        "revoked",
        "The API server does not accept the token any more (`--token-review`).",
    ),
    (
        "hello",
        "The first message was missing, or cannot be answered.",
    ),
    (
        "wrong_node",
        "The credential belongs to another node than the one asked for.",
    ),
    (
        "not_relay",
        "A client that is no relay asked for the tables of all nodes.",
    ),
    (
        "not_edge",
        "A client that is no edge controller, or another one, sent the objects of a cluster.",
    ),
    (
        "reconnect_rate",
        "The node opens streams faster than once a second, after 30 at once.",
    ),
    ("wrong_cluster", "The node belongs to another cluster."),
    ("node_deleted", "The Node was deleted."),
    ("node_unknown", "There is no Node of that name, or not yet."),
    (
        "starting",
        "The controller does not know yet which cluster it serves.",
    ),
    ("shutdown", "The controller is stopping."),
];

/// A table of reasons with their meanings.
fn reasons<'r>(reasons: impl Iterator<Item = &'r str>) -> String {
    let rows = reasons.map(|reason| {
        let meaning = MEANINGS.iter().find(|(known, _)| *known == reason);
        let (_, meaning) = meaning.unwrap_or_else(|| panic!("{reason} has no meaning"));
        format!("| `{reason}` | {meaning} |\n")
    });
    "| reason | meaning |\n|---|---|\n".to_owned() + &rows.collect::<String>()
}

#[test]
fn the_reference_of_problems_is_that_of_the_code() {
    let of_objects =
        REASONS.map(|reason| format!("| `{}` | {} |\n", reason.as_str(), meaning(reason)));
    let of_records = reasons(AgentProblem::REASONS.into_iter());
    let refusals = Sessions::default().refusals();
    let of_streams = reasons(refusals.iter().map(|(reason, _)| reason.as_str()));
    let page = format!(
        "## Problems of objects\n\n\
         Label `reason` of `portolan_controller_problems_total`; `/debug/problems` lists those of the moment, each with\n\
         the object, the field and a message.\n\n\
         | reason | meaning |\n|---|---|\n{}\n\
         ## Refused records\n\n\
         Label `reason` of `portolan_controller_records_refused`: records that an agent cannot read. Their last good\n\
         version stays in force.\n\n{of_records}\n\
         ## Refused connections and streams\n\n\
         Label `reason` of `portolan_controller_sessions_refused_total`.\n\n{of_streams}",
        of_objects.concat()
    );
    portolan_reference::compare("problems.md", "Problems", &page);
}

/// States with something of each kind that is counted.
fn states() -> ClusterStates {
    let states = ClusterStates::default();
    let mut fleet = Fleet::default();
    let settings = Settings {
        stale_ttl: Duration::ZERO,
        return_after: Duration::ZERO,
        ramp_up: Duration::ZERO,
        drain: None,
    };
    fleet.set(&"eu-1".into(), settings);
    let mut some = states.lock();
    some.statuses = fleet.statuses();
    some.restarts.insert("eu-1".into(), 1);
    some.gateways.insert("eu-1".into(), 2);
    some.counts = FederationCounts {
        exports: [("eu-1".into(), 1)].into(),
        imports: [("eu-1".into(), 1)].into(),
        refused: [("eu-1".into(), [("NoService", 1)].into())].into(),
        conflicts: [("PortConflict", 2)].into(),
    };
    some.changes.insert("eu-1".into(), 1);
    some.queues.insert("eu-1".into(), 1);
    drop(some);
    states
}

/// Everything that [`crate::app::run`] registers with some source.
#[tokio::test]
async fn the_reference_of_metrics_is_that_of_the_code() {
    let mut registry = Registry::default();
    register_process(&mut registry);
    let ours = registry.sub_registry_with_prefix("portolan_controller");
    let mut problems = ProblemLog::default();
    problems.register(ours);
    problems.update(&samples::problem());
    let catalog = CatalogMetrics::register(ours);
    catalog.observe(&Catalog::default());
    catalog.published(1, Duration::ZERO);
    let sessions = Arc::new(Sessions::default());
    SessionCollector::register(&sessions, ours);
    let convergence = sessions.convergence();
    drop(convergence.get_or_create(&[("share", "1")]));
    let credentials = vec![("tls", Arc::default())];
    ours.register_collector(Box::new(CredentialCollector(credentials)));
    ReviewMetrics::register(ours);
    ClusterMetrics::register(ours);
    let stats = Arc::new(Stats::default());
    let holds = Arc::clone(stats.holds());
    ours.register_collector(Box::new(HoldCollector(holds)));
    ours.register_collector(Box::new(ContactCollector(|| Some(Duration::ZERO))));
    ours.register_collector(Box::new(SourceCollector { stats }));
    WriteCounts::register(ours).count("eu-1", "ServiceImport", "written");
    let sources = ClusterSources::default();
    let contact = Arc::new(Contact::default());
    contact.note();
    let contact = SourceContact::Files(contact);
    sources.lock().unwrap().insert("eu-1".into(), contact);
    let edge = Arc::new(edge::Stats::default());
    edge.count_end("closed");
    let edge = SourceContact::Edge(edge);
    sources.lock().unwrap().insert("us-1".into(), edge);
    ours.register_collector(Box::new(UplinkCollector(Arc::default())));
    let states = states();
    ours.register_collector(Box::new(ClusterCollector { sources, states }));
    ours.register_collector(Box::new(RelayCollector(Arc::default())));
    let config = ZoneConfig::new("cluster.local").unwrap();
    let zone = Arc::new(SharedZone::new(Zone::new(config, 1).unwrap()));
    let _lag = zone.subscribe("etcd");
    zone.apply([NamesChange::Synced]);
    ours.register_collector(Box::new(LagCollector(Arc::clone(&zone))));
    let server = Server::new(zone).with_metrics(Metrics::register(ours));
    assert!(server.resolve(samples::DNS_QUERY).await.is_some());

    let page = portolan_reference::metrics(&registry);
    portolan_reference::compare(
        "controller-metrics.md",
        "Metrics of portolan-controller",
        &page,
    );
}
