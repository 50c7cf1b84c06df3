// SPDX-License-Identifier: Apache-2.0

//! Tests of the issuers of tokens that a policy has.

use portolan_auth::testing::{Signer, claims, edge_claims, key_set};
use portolan_auth::{Authentication, Identity, TokenVerifier, authenticate};
use portolan_model::NodeKey;
use portolan_policy::{File, read};
use tonic::metadata::MetadataMap;

use super::*;

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

fn access(keys: &str) -> String {
    format!(
        "{{edge: {{tokens: {{issuer: \"{ISSUER}\", {keys}, serviceAccounts: [portolan/edge]}}}}}}"
    )
}

fn file_in(dir: &Path, name: &str) -> String {
    access(&format!("jwksFile: {}", dir.join(name).display()))
}

/// The identity that a token with these claims proves.
fn identity_of(
    issuers: &watch::Receiver<Arc<Issuers>>,
    signer: &Signer,
    claims: &serde_json::Value,
) -> Result<Identity, String> {
    let verifier = Arc::new(TokenVerifier::of(issuers.clone()));
    let token = signer.sign(claims);
    let mut metadata = MetadataMap::new();
    metadata.insert("authorization", format!("Bearer {token}").parse().unwrap());
    let required = Authentication::Required(Some(verifier));
    let identity = authenticate(&required, None, &metadata, || true);
    identity.map_err(|refusal| refusal.status.message().to_owned())
}

/// The cluster that an edge's token of the issuer proves.
fn cluster_of(issuers: &watch::Receiver<Arc<Issuers>>, signer: &Signer) -> Result<String, String> {
    let identity = identity_of(issuers, signer, &edge_claims(ISSUER, "edge-1"))?;
    Ok(identity.cluster().unwrap_or_default().to_owned())
}

impl Rig {
    /// The next problems but for edges that are away.
    async fn token_problems(&mut self) -> Vec<String> {
        let mut problems = self.problems().await;
        problems.retain(|problem| !problem.contains("no edge controller"));
        problems
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_usable_keys_of_a_cluster_stay_in_force() {
    let mut rig = Rig::new(&[]);
    let signer = Signer::elliptic("1");
    rig.change().await;
    let of_file = file_in(rig.dir.path(), "jwks");
    rig.write(&cluster("eu-1", &of_file, 1));
    rig.joined().await;
    let missing = rig.token_problems().await;
    assert_eq!(missing.len(), 1, "{missing:?}");
    let field = "Cluster eu-1: spec.access.edge.tokens.jwksFile: ";
    assert!(missing[0].starts_with(field), "{missing:?}");
    assert!(missing[0].contains("jwks: No such file"), "{missing:?}");
    assert!(cluster_of(&rig.issuers, &signer).is_err());

    rig.replace("jwks", &key_set(&[&signer]));
    assert_eq!(rig.token_problems().await, [""; 0]);
    let accepted = Ok("eu-1".to_owned());
    assert_eq!(cluster_of(&rig.issuers, &signer), accepted);

    // Neither a broken file nor a change of the issuer to unusable keys takes them away.
    rig.replace("jwks", "{}");
    let broken = rig.token_problems().await;
    assert!(
        broken[0].contains("jwks: ") && broken[0].ends_with("stay in force"),
        "{broken:?}"
    );
    assert_eq!(cluster_of(&rig.issuers, &signer), accepted);
    let other = access("jwks: nothing").replace(ISSUER, "https://other");
    rig.write(&cluster("eu-1", &other, 1));
    let broken = rig.token_problems().await;
    let field = "Cluster eu-1: spec.access.edge.tokens.jwks: JSON Web Key Set: ";
    assert!(broken[0].starts_with(field), "{broken:?}");
    assert_eq!(cluster_of(&rig.issuers, &signer), accepted);

    // New keys in the policy itself.
    let new = Signer::elliptic("2");
    let of_text = access(&format!("jwks: '{}'", key_set(&[&new])));
    rig.write(&cluster("eu-1", &of_text, 1));
    assert_eq!(rig.token_problems().await, [""; 0]);
    assert_eq!(cluster_of(&rig.issuers, &new), accepted);
    let refused = cluster_of(&rig.issuers, &signer).unwrap_err();
    assert!(refused.contains("\"1\") is not known"), "{refused}");

    rig.issuers.mark_unchanged();
    rig.write(&cluster("eu-1", "{edge: {}}", 1));
    let changed = rig.issuers.changed();
    timeout(Duration::from_secs(60), changed)
        .await
        .unwrap()
        .unwrap();
    let refused = cluster_of(&rig.issuers, &new).unwrap_err();
    assert!(refused.contains("issuer"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn clusters_with_one_issuer_are_told_apart_by_keys_or_named() {
    let mut rig = Rig::new(&[]);
    let (own, both) = (Signer::elliptic("own"), Signer::elliptic("both"));
    rig.change().await;
    rig.replace("a", &key_set(&[&own]));
    rig.replace("b", &key_set(&[&both]));
    let policy = [
        cluster("eu-1", &file_in(rig.dir.path(), "a"), 1),
        cluster("us-1", &file_in(rig.dir.path(), "b"), 2),
    ];
    rig.write(&policy.concat());
    rig.joined().await;
    rig.joined().await;
    assert_eq!(rig.token_problems().await, [""; 0]);
    assert_eq!(cluster_of(&rig.issuers, &own), Ok("eu-1".to_owned()));
    assert_eq!(cluster_of(&rig.issuers, &both), Ok("us-1".to_owned()));

    rig.replace("a", &key_set(&[&own, &both]));
    let problems = rig.token_problems().await;
    let problem = |cluster: &str, other: &str| {
        format!(
            "Cluster {cluster}: spec.access.edge.tokens.issuer: {ISSUER:?} and the key \"both\" are those of Cluster \
             {other:?} too, so their tokens are refused: give each API server a --service-account-issuer of its own"
        )
    };
    assert_eq!(problems, [problem("eu-1", "us-1"), problem("us-1", "eu-1")]);
    assert_eq!(cluster_of(&rig.issuers, &own), Ok("eu-1".to_owned()));
    let refused = cluster_of(&rig.issuers, &both).unwrap_err();
    assert!(refused.contains("several clusters"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_of_a_cluster_proves_its_node_by_a_token() {
    let mut rig = Rig::new(&["eu-1"]);
    rig.joined().await;
    let signer = Signer::elliptic("1");
    let objects = rig.dir.path().join("eu-1.yaml");
    let access = format!(
        "{{files: [{}]}}\n  agents: {{tokens: {{issuer: \"{ISSUER}\", jwks: '{}', serviceAccounts: \
         [kube-system/portolan-agent]}}}}",
        objects.display(),
        key_set(&[&signer])
    );
    rig.issuers.mark_unchanged();
    rig.write(&cluster("eu-1", &access, 0));
    let changed = timeout(Duration::from_secs(60), rig.issuers.changed());
    changed.await.unwrap().unwrap();
    let mut of_agent = claims();
    of_agent["iss"] = ISSUER.into();
    let identity = identity_of(&rig.issuers, &signer, &of_agent).unwrap();
    let is_node = |cluster: &str, name: &str| {
        let (cluster, name) = (cluster.into(), name.into());
        identity.authorize_node(&NodeKey { cluster, name }).is_ok()
    };
    assert!(is_node("eu-1", "a"));
    assert!(!is_node("eu-1", "b") && !is_node("us-1", "a"));
    let pod = "portolan-agent-x";
    assert!(identity.authorize_edge("eu-1", pod).is_err());
    // A token of another ServiceAccount of the cluster.
    let refused = cluster_of(&rig.issuers, &signer).unwrap_err();
    assert!(refused.contains("ServiceAccount"), "{refused}");
}

#[test]
fn tokens_that_nobody_may_show_are_named() {
    let text = cluster("eu-1", &access("jwks: x"), 1);
    let read = read(&[File {
        name: "p.yaml",
        text: &text,
    }]);
    let unused = super::super::tokens::unused_in(&read.objects);
    assert_eq!(unused.len(), 1);
    assert!(unused[0].starts_with("Cluster eu-1: spec.access.edge.tokens: "));
    assert!(unused[0].ends_with("without --cluster-tokens"));
    let wrong = token_problems(&read.objects);
    assert!(
        wrong[0].contains("spec.access.edge.tokens.jwks: "),
        "{wrong:?}"
    );
    let of_agents =
        "{files: [a]}\n  agents: {tokens: {issuer: a, jwks: x, serviceAccounts: [a/b]}}";
    let of_agents = cluster("eu-1", of_agents, 1);
    let of_agents = portolan_policy::read(&[File {
        name: "p.yaml",
        text: &of_agents,
    }]);
    let unused = super::super::tokens::unused_in(&of_agents.objects);
    assert!(unused[0].starts_with("Cluster eu-1: spec.agents.tokens: "));
    let wrong = token_problems(&of_agents.objects);
    assert!(wrong[0].contains("spec.agents.tokens.jwks: "), "{wrong:?}");
    let none = cluster("eu-1", "{edge: {}}", 1);
    let none = portolan_policy::read(&[File {
        name: "p.yaml",
        text: &none,
    }]);
    assert!(super::super::tokens::unused_in(&none.objects).is_empty());
    assert!(token_problems(&none.objects).is_empty());
}
