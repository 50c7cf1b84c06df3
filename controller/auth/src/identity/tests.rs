// SPDX-License-Identifier: Apache-2.0

//! Tokens, good and bad. Keys are made for the test.

use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use portolan_tls::{EdgeName, NodeName, RelayName};
use serde_json::{Value, json};

use super::*;
use crate::testing::{Signer, claims, unix_now};
use crate::*;

fn verifier(signers: &[&Signer]) -> TokenVerifier {
    crate::testing::verifier("eu", signers)
}

#[test]
fn a_bound_token_names_its_node() {
    let (elliptic, rsa) = (Signer::elliptic("1"), Signer::rsa("2"));
    let verifier = verifier(&[&elliptic, &rsa]);
    for signer in [&elliptic, &rsa] {
        let claims = claims();
        let certified = verifier.verify(&signer.sign(&claims)).unwrap();
        let name = PeerName::Node(NodeName::new("eu", "a").unwrap());
        assert_eq!(certified.name, name);
        let until = certified.until.duration_since(UNIX_EPOCH).unwrap();
        assert_eq!(claims["exp"], until.as_secs());
    }
}

#[test]
fn refusals_of_tokens_name_the_fault() {
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 16] = [
        (
            |c| c["aud"] = json!(["https://kubernetes.default.svc"]),
            "audience",
        ),
        (|c| c["aud"] = json!([]), "audience"),
        (
            |c| drop(c.as_object_mut().unwrap().remove("aud")),
            "no claim aud",
        ),
        (|c| c["iss"] = json!("https://elsewhere"), "issuer"),
        (
            |c| drop(c.as_object_mut().unwrap().remove("iss")),
            "no claim iss",
        ),
        (|c| c["iss"] = json!(1), "malformed"),
        (|c| c["exp"] = json!(unix_now() - 31), "expired"),
        (
            |c| drop(c.as_object_mut().unwrap().remove("exp")),
            "malformed",
        ),
        (|c| c["nbf"] = json!(unix_now() + 60), "not valid yet"),
        (
            |c| c["kubernetes.io"]["node"] = Value::Null,
            "names no node",
        ),
        (
            |c| c["kubernetes.io"]["node"]["name"] = json!(""),
            "expected portolan://",
        ),
        (
            |c| c["kubernetes.io"]["node"]["name"] = json!("a/node/b"),
            "expected portolan://",
        ),
        (|c| c["kubernetes.io"] = Value::Null, "names no node"),
        (
            |c| c["kubernetes.io"]["namespace"] = json!("default"),
            "default/portolan-agent",
        ),
        (
            |c| c["kubernetes.io"]["serviceaccount"]["name"] = json!("x"),
            "kube-system/x",
        ),
        (
            |c| c["kubernetes.io"]["serviceaccount"] = Value::Null,
            "kube-system/",
        ),
    ];
    let signer = Signer::elliptic("1");
    let verifier = verifier(&[&signer]);
    for (change, expected) in cases {
        let mut claims = claims();
        change(&mut claims);
        let error = verifier.verify(&signer.sign(&claims)).unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        let expired = error.reason() == RefusalReason::Expired;
        assert_eq!(expired, expected == "expired");
    }
}

#[test]
fn clocks_may_differ_a_little() {
    let signer = Signer::elliptic("1");
    let mut claims = claims();
    claims["exp"] = json!(unix_now() - 20);
    claims["nbf"] = json!(unix_now() + 20);
    assert!(verifier(&[&signer]).verify(&signer.sign(&claims)).is_ok());
}

#[tokio::test]
async fn a_key_that_is_not_known_is_asked_for() {
    let (known, other) = (Signer::elliptic("1"), Signer::elliptic("2"));
    let (keys, wanted) = (testing::keys(&[&known]), KeyWanted::default());
    let verifier = TokenVerifier::new(testing::config("eu"), keys, Arc::clone(&wanted));
    let error = verifier.verify(&other.sign(&claims())).unwrap_err();
    assert_eq!(error, TokenError::UnknownKey("2".to_owned()));
    // Returns at once, since it was notified.
    wanted.notified().await;
}

#[test]
fn only_the_key_says_which_algorithm_it_is_for() {
    let (known, rsa) = (Signer::elliptic("1"), Signer::rsa("2"));
    let verifier = verifier(&[&known, &rsa]);
    let refused = |token: &str| verifier.verify(token).unwrap_err().to_string();
    // Another key under a known id.
    let forger = Signer::elliptic("1");
    assert!(refused(&forger.sign(&claims())).contains("signature"));
    // Another algorithm under a known id.
    let mut confused = Signer::rsa("1");
    assert!(refused(&confused.sign(&claims())).contains("algorithm"));
    confused.algorithm = Algorithm::HS256;
    // A public key as the secret.
    let public = serde_json::to_vec(&rsa.public).unwrap();
    confused.key = EncodingKey::from_secret(&public);
    confused.public.common.key_id = Some("2".to_owned());
    assert!(refused(&confused.sign(&claims())).contains("algorithm"));
    // No signature at all.
    let good = known.sign(&claims());
    let (_, rest) = good.split_once('.').unwrap();
    let (payload, signature) = rest.split_once('.').unwrap();
    // {"alg":"none","kid":"1"}
    let none = "eyJhbGciOiJub25lIiwia2lkIjoiMSJ9";
    for unsigned in [
        format!("{none}.{payload}."),
        format!("{none}.{payload}.{signature}"),
    ] {
        assert!(refused(&unsigned).contains("malformed"), "{unsigned}");
    }
    for garbage in [
        "",
        ".",
        "..",
        "a.b.c",
        &good[..good.len() - 4],
        &"x".repeat(9_000),
    ] {
        assert!(verifier.verify(garbage).is_err(), "{garbage}");
    }
    assert!(verifier.verify(&good).is_ok());
}

#[test]
fn a_token_without_the_id_of_a_key_is_refused() {
    let signer = Signer::elliptic("1");
    let token = encode(&Header::new(Algorithm::ES256), &claims(), &signer.key).unwrap();
    let error = verifier(&[&signer]).verify(&token).unwrap_err();
    assert!(error.to_string().contains("no kid"), "{error}");
}

#[test]
fn keys_that_cannot_be_used_are_left_out() {
    let good = serde_json::to_value(Signer::elliptic("1").public).unwrap();
    let odd = json!({"kty": "oct", "kid": "2", "k": "c2VjcmV0"});
    let mut nameless = good.clone();
    nameless.as_object_mut().unwrap().remove("kid");
    let parse = |keys: Value| KeySet::parse(json!({ "keys": keys }).to_string().as_bytes());
    let keys = parse(json!([good, odd, nameless])).unwrap();
    assert!(keys.get("1").is_some() && keys.get("2").is_none());
    let error = parse(json!([odd, nameless])).unwrap_err();
    assert!(matches!(error, KeySetError::NoUsableKey), "{error}");
    assert!(KeySet::parse(b"{}").is_err() && KeySet::parse(b"not JSON").is_err());
}

#[test]
fn a_token_is_taken_from_the_request() {
    let signer = Signer::elliptic("1");
    let required = Authentication::Required(Some(Arc::new(verifier(&[&signer]))));
    let of = |value: &str| {
        let mut metadata = MetadataMap::new();
        metadata.insert("authorization", value.parse().unwrap());
        authenticate(&required, None, &metadata, || true)
    };
    let token = signer.sign(&claims());
    for scheme in ["Bearer", "bearer"] {
        let identity = of(&format!("{scheme} {token}")).unwrap();
        let node = |cluster: &str, name: &str| NodeKey {
            cluster: cluster.into(),
            name: name.into(),
        };
        assert!(identity.authorize_node(&node("eu", "a")).is_ok());
        let reason = |key| identity.authorize_node(&key).unwrap_err().reason;
        assert_eq!(reason(node("eu", "b")), RefusalReason::WrongNode);
        assert_eq!(reason(node("us", "a")), RefusalReason::WrongCluster);
        let among = |served: &[&'static str]| {
            identity.authorize_cluster(|name| served.iter().find(|it| **it == name).copied())
        };
        assert_eq!(among(&["us", "eu"]).unwrap(), Some("eu"));
        let refusal = among(&["us"]).unwrap_err();
        assert_eq!(refusal.reason, RefusalReason::WrongCluster);
    }
    for bad in [token.as_str(), "Basic dTpw", "Bearer", "Bearer "] {
        let refusal = of(bad).unwrap_err();
        assert_eq!(refusal.reason, RefusalReason::Token, "{bad}");
        assert_eq!(refusal.status.code(), tonic::Code::Unauthenticated);
        // The message is logged, and must not reveal the token.
        assert!(!refusal.status.message().contains(&token));
    }
    let nothing = authenticate(&required, None, &MetadataMap::new(), || true).unwrap_err();
    assert_eq!(nothing.reason, RefusalReason::NoCredential);
    // Without a verifier no token is accepted.
    let certificates = Authentication::Required(None);
    let mut metadata = MetadataMap::new();
    metadata.insert("authorization", format!("Bearer {token}").parse().unwrap());
    let refusal = authenticate(&certificates, None, &metadata, || true).unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::NoCredential);
}

#[test]
fn only_a_relay_is_sent_what_all_nodes_have_and_nothing_else() {
    let known = |name| {
        let until = SystemTime::now();
        Identity::Known(Certified { name, until }, None)
    };
    let agent = known(PeerName::Node(NodeName::new("eu", "a").unwrap()));
    let relay = known(PeerName::Relay(RelayName::new("eu", "a").unwrap()));
    let key = |cluster: &str, name: &str| NodeKey {
        cluster: cluster.into(),
        name: name.into(),
    };
    let reason = |identity: &Identity, key: NodeKey, all| {
        let authorized = match all {
            false => identity.authorize_node(&key),
            true => identity.authorize_relay(&key.cluster, &key.name),
        };
        let refused = authorized.err();
        refused.map(|refusal| {
            assert_eq!(refusal.status.code(), tonic::Code::PermissionDenied);
            refusal.reason
        })
    };
    let a = || key("eu", "a");
    assert_eq!(reason(&agent, a(), false), None);
    assert_eq!(reason(&agent, a(), true), Some(RefusalReason::NotRelay));
    assert_eq!(reason(&relay, a(), true), None);
    assert_eq!(reason(&relay, a(), false), Some(RefusalReason::WrongNode));
    let (b, us) = (key("eu", "b"), key("us", "a"));
    assert_eq!(reason(&relay, b, true), Some(RefusalReason::WrongNode));
    assert_eq!(reason(&relay, us, true), Some(RefusalReason::WrongCluster));
    assert_eq!(reason(&Identity::Anyone, a(), true), None);
}

#[test]
fn only_an_edge_sends_the_objects_of_its_own_cluster_and_nothing_else() {
    let known = |name| {
        let until = SystemTime::now();
        Identity::Known(Certified { name, until }, None)
    };
    let edge = known(PeerName::Edge(EdgeName::new("eu", "a").unwrap()));
    let agent = known(PeerName::Node(NodeName::new("eu", "a").unwrap()));
    let relay = known(PeerName::Relay(RelayName::new("eu", "a").unwrap()));
    let reason = |identity: &Identity, cluster: &str, name: &str| {
        let refused = identity.authorize_edge(cluster, name).err();
        refused.map(|refusal| refusal.reason)
    };
    assert_eq!(reason(&edge, "eu", "a"), None);
    for (identity, cluster, name, expected) in [
        (&edge, "us", "a", RefusalReason::WrongCluster),
        (&edge, "eu", "b", RefusalReason::NotEdge),
        (&agent, "eu", "a", RefusalReason::NotEdge),
        (&relay, "eu", "a", RefusalReason::NotEdge),
    ] {
        assert_eq!(reason(identity, cluster, name), Some(expected));
    }
    // Its certificate is of no use for tables.
    let node = NodeKey {
        cluster: "eu".into(),
        name: "a".into(),
    };
    let refused = edge.authorize_node(&node).unwrap_err();
    assert_eq!(refused.reason, RefusalReason::WrongNode);
    let refused = edge.authorize_relay("eu", "a").unwrap_err();
    assert_eq!(refused.reason, RefusalReason::NotRelay);
    assert!(refused.status.message().contains("the edge \"a\""));
}
