// SPDX-License-Identifier: Apache-2.0

//! Tokens of edge controllers of several clusters. Keys are made for the test.

use portolan_tls::{EdgeName, NodeName, PeerName};
use serde_json::{Value, json};

use super::*;
use crate::testing::{Signer, claims, config, edge_claims, edge_issuer, key_set, keys, unix_now};
use crate::{RefusalReason, TokenVerifier};

const EU: &str = "https://eu.example";
const US: &str = "https://us.example";

fn verifier(issuers: impl IntoIterator<Item = Issuer>) -> TokenVerifier {
    let issuers = Arc::new(Issuers::from_iter(issuers));
    TokenVerifier::of(watch::channel(issuers).1)
}

fn edge(cluster: &str, name: &str) -> PeerName {
    PeerName::Edge(EdgeName::new(cluster, name).unwrap())
}

#[test]
fn a_token_proves_an_edge_of_the_cluster_of_its_issuer_alone() {
    let (eu, us) = (Signer::elliptic("eu"), Signer::rsa("us"));
    let verifier = verifier([edge_issuer("eu", EU, &[&eu]), edge_issuer("us", US, &[&us])]);
    let verified = |signer: &Signer, issuer| {
        let token = signer.sign(&edge_claims(issuer, "edge-1"));
        verifier.verify(&token).map(|certified| certified.name)
    };
    assert_eq!(verified(&eu, EU), Ok(edge("eu", "edge-1")));
    assert_eq!(verified(&us, US), Ok(edge("us", "edge-1")));
    // A cluster that names the issuer of another one has none of its keys.
    let unknown = |key: &str| Err(TokenError::UnknownKey(key.to_owned()));
    assert_eq!(verified(&us, EU), unknown("us"));
    assert_eq!(verified(&eu, US), unknown("eu"));
    // Nor has it their private keys, whatever the ID.
    let forged = verified(&Signer::elliptic("eu"), EU).unwrap_err();
    assert!(forged.to_string().contains("signature"), "{forged}");
    let elsewhere = verified(&eu, "https://elsewhere").unwrap_err();
    assert_eq!(
        elsewhere,
        TokenError::Issuer("https://elsewhere".to_owned())
    );
}

#[test]
fn the_account_decides_between_agents_and_edges_of_a_cluster() {
    let signer = Signer::elliptic("1");
    let issuers = || {
        let config = TokenConfig {
            issuer: EU.to_owned(),
            ..config("eu")
        };
        let of_agents = Issuer::new(config, keys(&[&signer]), KeyWanted::default());
        [of_agents, edge_issuer("eu", EU, &[&signer])]
    };
    assert_eq!(Issuers::from_iter(issuers()).shared_keys(), []);
    let verifier = verifier(issuers());
    let mut of_agent = claims();
    of_agent["iss"] = json!(EU);
    let verified = |claims: &Value| {
        let certified = verifier.verify(&signer.sign(claims));
        certified.map(|certified| certified.name)
    };
    let node = PeerName::Node(NodeName::new("eu", "a").unwrap());
    assert_eq!(verified(&of_agent), Ok(node));
    let mut of_edge = edge_claims(EU, "edge-1");
    assert_eq!(verified(&of_edge), Ok(edge("eu", "edge-1")));
    // A node in the token of an edge makes no agent of it.
    of_edge["kubernetes.io"]["node"] = json!({"name": "a"});
    assert_eq!(verified(&of_edge), Ok(edge("eu", "edge-1")));
    of_agent["kubernetes.io"]["node"] = Value::Null;
    assert_eq!(verified(&of_agent), Err(TokenError::NoNode));
    of_edge["kubernetes.io"]["serviceaccount"]["name"] = json!("x");
    let stranger = TokenError::ServiceAccount("portolan/x".to_owned());
    assert_eq!(verified(&of_edge), Err(stranger));
}

#[test]
fn refusals_of_edges_tokens_name_the_fault() {
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 7] = [
        (|c| c["aud"] = json!(["other"]), "audience"),
        (|c| c["exp"] = json!(unix_now() - 31), "expired"),
        (|c| c["kubernetes.io"]["pod"] = Value::Null, "names no pod"),
        (|c| c["kubernetes.io"] = Value::Null, "names no pod"),
        (
            |c| c["kubernetes.io"]["pod"]["name"] = json!("a/b"),
            "expected portolan://",
        ),
        // An agent of the same cluster is no edge.
        (
            |c| {
                *c = {
                    let mut of_agent = claims();
                    of_agent["iss"] = json!(EU);
                    of_agent
                }
            },
            "\"kube-system/portolan-agent\" is not one",
        ),
        (
            |c| c["kubernetes.io"]["serviceaccount"]["name"] = json!("x"),
            "\"portolan/x\" is not one",
        ),
    ];
    let signer = Signer::elliptic("1");
    let verifier = verifier([edge_issuer("eu", EU, &[&signer])]);
    for (change, expected) in cases {
        let mut claims = edge_claims(EU, "edge-1");
        change(&mut claims);
        let error = verifier.verify(&signer.sign(&claims)).unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        let expired = error.reason() == RefusalReason::Expired;
        assert_eq!(expired, expected == "expired");
    }
}

#[test]
fn the_key_decides_between_clusters_with_one_issuer() {
    let (eu, us, both) = (
        Signer::elliptic("eu"),
        Signer::elliptic("us"),
        Signer::elliptic("both"),
    );
    let issuers = || {
        [
            edge_issuer("eu", EU, &[&eu, &both]),
            edge_issuer("us", EU, &[&us, &both]),
            edge_issuer("ap", US, &[&both]),
        ]
    };
    let tokens = verifier(issuers());
    let verified = |signer: &Signer, issuer| {
        let token = signer.sign(&edge_claims(issuer, "edge-1"));
        tokens.verify(&token).map(|certified| certified.name)
    };
    assert_eq!(verified(&eu, EU), Ok(edge("eu", "edge-1")));
    assert_eq!(verified(&us, EU), Ok(edge("us", "edge-1")));
    let refused = verified(&both, EU).unwrap_err();
    assert_eq!(refused, TokenError::SharedKey("both".to_owned()));
    assert!(refused.to_string().contains("--service-account-issuer"));
    // The same key of another issuer is no matter.
    assert_eq!(verified(&both, US), Ok(edge("ap", "edge-1")));
    let shared = Issuers::from_iter(issuers()).shared_keys();
    let pairs: Vec<_> = shared
        .iter()
        .map(|one| (&*one.cluster, &*one.other, &*one.issuer, &*one.key))
        .collect();
    assert_eq!(pairs, [("eu", "us", EU, "both"), ("us", "eu", EU, "both")]);
    let text = shared[0].to_string();
    assert!(text.contains("Cluster \"us\"") && text.contains("--service-account-issuer"));
}

#[test]
fn a_foreign_key_under_a_known_id_takes_no_cluster_over() {
    // The keys of `us` have an ID of `eu`: neither proves anything by it.
    let (eu, us) = (Signer::elliptic("1"), Signer::elliptic("1"));
    let verifier = verifier([edge_issuer("eu", EU, &[&eu]), edge_issuer("us", EU, &[&us])]);
    for signer in [&eu, &us] {
        let token = signer.sign(&edge_claims(EU, "edge-1"));
        let refused = verifier.verify(&token).unwrap_err();
        assert_eq!(refused, TokenError::SharedKey("1".to_owned()));
    }
}

#[test]
fn issuers_and_their_keys_may_change() {
    let (old, new) = (Signer::elliptic("old"), Signer::elliptic("new"));
    let (sender, issuers) = watch::channel(Arc::new(Issuers::default()));
    let verifier = TokenVerifier::of(issuers);
    let verified = |signer: &Signer| {
        let token = signer.sign(&edge_claims(EU, "edge-1"));
        verifier.verify(&token).map(|certified| certified.name)
    };
    assert_eq!(verified(&old), Err(TokenError::Issuer(EU.to_owned())));
    for signer in [&old, &new] {
        let issuer = edge_issuer("eu", EU, &[signer]);
        sender.send_replace(Arc::new(Issuers::from_iter([issuer])));
        assert_eq!(verified(signer), Ok(edge("eu", "edge-1")));
    }
    assert_eq!(
        verified(&old),
        Err(TokenError::UnknownKey("old".to_owned()))
    );
    assert!(KeySet::parse(key_set(&[&old]).as_bytes()).is_ok());
}

#[tokio::test]
async fn each_issuer_of_the_name_is_asked_for_an_unknown_key() {
    let (known, other) = (Signer::elliptic("1"), Signer::elliptic("2"));
    let wanted = [KeyWanted::default(), KeyWanted::default()];
    let issuers = wanted
        .clone()
        .map(|wanted| Issuer::new(config("eu"), keys(&[&known]), wanted));
    let error = verifier(issuers).verify(&other.sign(&claims()));
    assert_eq!(error, Err(TokenError::UnknownKey("2".to_owned())));
    for wanted in wanted {
        // Returns at once, since it was notified.
        wanted.notified().await;
    }
}
