// SPDX-License-Identifier: Apache-2.0

//! Tests of what a kubeconfig of another cluster may have.

use axum::body::Body;
use axum::http::{Request as HttpRequest, Response};
use kube::client::Body as RequestBody;
use serde_json::json;
use tower_test::mock::{Handle, pair};

use super::*;

const CLUSTER: &str = "{server: 'https://192.0.2.1:6443'}";
const USER: &str = "{token: t}";

fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: a, user: b}}}}]\n\
         clusters: [{{name: a, cluster: {cluster}}}]\nusers: [{{name: b, user: {user}}}]\n"
    )
}

fn refused(result: Result<MemberConfig, MemberError>) -> String {
    result.expect_err("a refusal").to_string()
}

#[test]
fn what_a_kubeconfig_must_not_have_is_named() {
    let plain = "{server: 'http://192.0.2.1:6443'}";
    let unverified = "{server: 'https://192.0.2.1', insecure-skip-tls-verify: true}";
    let exec = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: sh}}";
    let provider = "{auth-provider: {name: gcp, config: {}}}";
    for (cluster, user, expected) in [
        (plain, USER, "clusters[a].cluster.server: expected https"),
        (
            unverified,
            USER,
            "clusters[a].cluster.insecure-skip-tls-verify",
        ),
        (CLUSTER, exec, "users[b].user.exec"),
        (CLUSTER, provider, "users[b].user.auth-provider"),
    ] {
        let text = kubeconfig(cluster, user);
        for origin in [Origin::Object, Origin::Directory(Path::new("/"))] {
            let error = refused(MemberConfig::new(&text, origin));
            assert!(error.starts_with("KubeconfigForbidden: "), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }
    for (cluster, user, field) in [
        (
            "{server: 'https://a', certificate-authority: ca}",
            USER,
            "certificate-authority",
        ),
        (
            CLUSTER,
            "{client-certificate: /etc/passwd}",
            "client-certificate",
        ),
        (CLUSTER, "{client-key: /etc/shadow}", "client-key"),
        (CLUSTER, "{tokenFile: /etc/shadow}", "tokenFile"),
    ] {
        let error = refused(MemberConfig::of_secret(&kubeconfig(cluster, user)));
        assert!(error.starts_with("KubeconfigForbidden: "), "{error}");
        assert!(error.contains(field), "{error}");
    }
    for (text, expected) in [
        ("[", "not a kubeconfig"),
        ("{}", "current-context: missing"),
        ("{current-context: c}", "contexts[c].context: missing"),
    ] {
        let error = refused(MemberConfig::of_secret(text));
        assert!(error.contains(expected), "{error}");
    }
    assert!(MemberConfig::of_secret(&kubeconfig(CLUSTER, USER)).is_ok());
}

#[tokio::test]
async fn named_files_are_beside_the_kubeconfig_and_a_change_of_one_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    let text = kubeconfig(
        "{server: 'https://a', certificate-authority: ca.crt}",
        "{tokenFile: token}",
    );
    std::fs::write(&path, text).unwrap();
    let error = refused(MemberConfig::read(&path));
    assert!(error.contains("ca.crt"), "{error}");
    std::fs::write(dir.path().join("ca.crt"), "a").unwrap();
    std::fs::write(dir.path().join("token"), "t").unwrap();
    let first = MemberConfig::read(&path).unwrap().fingerprint;
    assert_eq!(MemberConfig::read(&path).unwrap().fingerprint, first);
    std::fs::write(dir.path().join("token"), "u").unwrap();
    assert_eq!(MemberConfig::read(&path).unwrap().fingerprint, first);
    std::fs::write(dir.path().join("ca.crt"), "b").unwrap();
    let second = MemberConfig::read(&path).unwrap();
    assert_ne!(second.fingerprint, first);
    assert!(second.client().await.is_err(), "no certificate");
    std::fs::write(&path, kubeconfig(CLUSTER, USER)).unwrap();
    assert!(MemberConfig::read(&path).unwrap().client().await.is_ok());
}

type Requests = Handle<HttpRequest<RequestBody>, Response<Body>>;

/// A client of a server that does not answer as long as its requests are kept.
fn silent() -> (Client, Requests) {
    let (service, requests) = pair::<HttpRequest<RequestBody>, Response<Body>>();
    (Client::new(service, "default"), requests)
}

/// A client of the cluster with this UID; without one the credential has expired.
fn of_cluster(uid: Option<&'static str>) -> Client {
    let (client, mut requests) = silent();
    tokio::spawn(async move {
        while let Some((request, respond)) = requests.next_request().await {
            let query = request.uri().query().unwrap_or_default();
            let items = match uid {
                Some(uid) if query.contains("fieldSelector") => {
                    json!([{"metadata": {"name": "kube-system", "uid": uid}}])
                }
                _ => json!([]),
            };
            let list = json!({
                "apiVersion": "v1",
                "kind": "List",
                "metadata": {"resourceVersion": "1"},
                "items": items,
            });
            let status = if uid.is_some() { 200 } else { 401 };
            let answer = Response::builder().status(status);
            respond.send_response(answer.body(Body::from(list.to_string())).unwrap());
        }
    });
    client
}

#[tokio::test(start_paused = true)]
async fn an_old_server_that_never_answers_keeps_no_new_kubeconfig_out() {
    let (old, _requests) = silent();
    let unknown = MemberId::default();
    let id = may_replace(&of_cluster(Some("a")), &old, &unknown).await;
    let id = id.expect("the new one may be used");
    // From now on the cluster is known.
    let other = may_replace(&of_cluster(Some("b")), &old, &id).await;
    assert!(matches!(other, Err(MemberError::OtherCluster)), "{other:?}");
    let (new, _requests) = silent();
    let unanswered = may_replace(&new, &old, &id).await;
    let is_refused = matches!(
        unanswered,
        Err(MemberError::Unanswered | MemberError::Unusable(_))
    );
    assert!(is_refused, "{unanswered:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_was_made_anew_is_that_which_the_old_client_reads() {
    let known = MemberId::default();
    known.learn(&of_cluster(Some("a"))).await;
    let id = may_replace(&of_cluster(Some("b")), &of_cluster(Some("b")), &known).await;
    let id = id.expect("the new one may be used");
    let before = may_replace(&of_cluster(Some("a")), &of_cluster(Some("b")), &id).await;
    assert!(
        matches!(before, Err(MemberError::OtherCluster)),
        "{before:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn another_cluster_is_refused_after_the_old_credential_has_expired() {
    let known = MemberId::default();
    known.learn(&of_cluster(Some("a"))).await;
    let expired = of_cluster(None);
    let same = may_replace(&of_cluster(Some("a")), &expired, &known).await;
    assert!(same.is_ok(), "{same:?}");
    let other = may_replace(&of_cluster(Some("b")), &expired, &known).await;
    assert!(matches!(other, Err(MemberError::OtherCluster)), "{other:?}");
}

#[tokio::test(start_paused = true)]
async fn an_old_server_that_answers_states_the_cluster() {
    let unknown = MemberId::default();
    let (new, old) = (of_cluster(Some("b")), of_cluster(Some("a")));
    let other = may_replace(&new, &old, &unknown).await;
    assert!(matches!(other, Err(MemberError::OtherCluster)), "{other:?}");
    let same = may_replace(&old, &new, &unknown).await;
    assert!(same.is_ok(), "the first answer counts: {same:?}");
}
