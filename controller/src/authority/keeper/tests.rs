// SPDX-License-Identifier: Apache-2.0

//! Replicas with one Secret.

use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;

use portolan_runtime::Readiness;
use portolan_tls::read_pem;
use serde_json::json;

use super::super::content::DAY;
use super::*;
use crate::fake_api::FakeApi;

const PATH: &str = "/api/v1/namespaces/kube-system/secrets/portolan";

fn empty() -> FakeApi {
    let api = FakeApi::default();
    let metadata = json!({"name": "portolan", "namespace": "kube-system", "labels": {"a": "b"}});
    api.put(
        PATH,
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata}),
    );
    api
}

fn keeper(api: &FakeApi, readiness: &Readiness) -> Keeper {
    let config = KeeperConfig {
        secret: "kube-system/portolan".parse().unwrap(),
        names: vec!["portolan.kube-system.svc".to_owned()],
        ca_days: 300,
        cert_days: 90,
        client_ca: None,
        anonymous: true,
    };
    Keeper::new(api.client(), config, readiness.block("certificate")).unwrap()
}

fn bundle(keeper: &Keeper) -> String {
    keeper.bundle().borrow().as_deref().unwrap().to_owned()
}

#[tokio::test]
async fn replicas_agree_on_one_authority_by_get_and_update_alone() {
    let (api, readiness) = (empty(), Readiness::default());
    let mut keepers: Vec<_> = (0..3).map(|_| keeper(&api, &readiness)).collect();
    let now = SystemTime::now();
    let [a, b, c] = &mut keepers[..] else {
        unreachable!()
    };
    let (a, b, c) = tokio::join!(a.look(now), b.look(now), c.look(now));
    a.and(b).and(c).unwrap();
    let bundles: BTreeSet<_> = keepers.iter().map(bundle).collect();
    assert_eq!(bundles.len(), 1);
    assert!(readiness.pending().is_empty());

    let requests = api.requests();
    let count = |what: &str| {
        requests
            .iter()
            .filter(|line| line.starts_with(what))
            .count()
    };
    let written = format!("PUT {PATH} 200");
    let refused = format!("PUT {PATH} 409");
    assert_eq!((count(&written), count(&refused)), (1, 2), "{requests:?}");
    assert_eq!(count("GET") + count("PUT"), requests.len());
    let secret = api.get(PATH);
    assert_eq!(secret["metadata"]["labels"]["a"], "b", "other fields stay");

    // The next day nothing is written, and the certificate stays.
    let tls = keepers[0].tls();
    keepers[0].look(now + DAY).await.unwrap();
    assert!(!tls.has_changed().unwrap());
    assert_eq!(api.requests(), [format!("GET {PATH} 200")]);
    keepers[0].look(now + 61 * DAY).await.unwrap();
    assert!(tls.has_changed().unwrap(), "renewed");
    let expires = keepers[0].health().1.expires();
    let days = (UNIX_EPOCH + Duration::from_secs(expires)).duration_since(now);
    assert_eq!(days.unwrap().as_secs().div_ceil(86_400), 61 + 90);
}

#[tokio::test]
async fn a_successor_is_published_by_all_before_it_signs() {
    let (api, readiness) = (empty(), Readiness::default());
    let (mut a, mut b) = (keeper(&api, &readiness), keeper(&api, &readiness));
    let now = SystemTime::now();
    a.look(now).await.unwrap();
    b.look(now).await.unwrap();
    a.look(now + 201 * DAY).await.unwrap();
    b.look(now + 201 * DAY).await.unwrap();
    let both = bundle(&b);
    assert_eq!(both.matches("BEGIN").count(), 2);
    let tls = b.tls();
    b.look(now + 202 * DAY + DAY / 2).await.unwrap();
    assert!(tls.has_changed().unwrap(), "signed by the successor");
    let first = bundle(&b);
    let expires = read_pem(&first).unwrap().expires;
    assert!(expires > now + 400 * DAY, "the successor is first");
    assert_eq!(
        first.matches("BEGIN").count(),
        2,
        "the predecessor is trusted"
    );
}

#[tokio::test]
async fn unusable_secrets_keep_the_certificate_and_the_program_unready() {
    let (api, readiness) = (FakeApi::default(), Readiness::default());
    let mut keeper = keeper(&api, &readiness);
    let error = keeper.look(SystemTime::now()).await.unwrap_err();
    assert!(format!("{error:#}").contains("404"), "{error:#}");
    assert_eq!(readiness.pending(), ["certificate"]);
    let secret = json!({"data": {"ca.crt": "eA=="}, "metadata": {"name": "portolan"}});
    api.put(PATH, secret.clone());
    let error = keeper.look(SystemTime::now()).await.unwrap_err();
    assert!(
        format!("{error:#}").contains("key ca.key: missing"),
        "{error:#}"
    );
    assert_eq!(api.get(PATH)["data"], secret["data"], "nothing was written");
    api.put(PATH, json!({"metadata": {"name": "portolan"}}));
    keeper.look(SystemTime::now()).await.unwrap();
    assert!(readiness.pending().is_empty());
}

#[tokio::test]
async fn an_unusable_client_authority_keeps_the_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.crt");
    let (api, readiness) = (empty(), Readiness::default());
    let mut keeper = keeper(&api, &readiness);
    let now = SystemTime::now();
    keeper.look(now).await.unwrap();
    let good = bundle(&keeper);
    std::fs::write(&path, &good).unwrap();
    keeper.config.client_ca = Some(path.clone());
    keeper.look(now).await.unwrap();

    let tls = keeper.tls();
    std::fs::write(&path, "no certificate").unwrap();
    keeper.look(now).await.unwrap_err();
    std::fs::write(&path, &good).unwrap();
    keeper.look(now).await.unwrap();
    assert!(
        !tls.has_changed().unwrap(),
        "the same certificate is in force"
    );
}

#[tokio::test]
async fn a_secret_that_is_usable_again_is_broken_no_longer() {
    let (api, readiness) = (empty(), Readiness::default());
    let mut keeper = keeper(&api, &readiness);
    let (_, health) = keeper.health();
    let now = SystemTime::now();
    let look = keeper.look(now).await;
    keeper.note(look);
    keeper.note(Err(anyhow::anyhow!("no answer")));
    assert!(health.is_broken());
    // The certificate is fresh: nothing is loaded.
    let look = keeper.look(now).await;
    keeper.note(look);
    assert!(!health.is_broken());
    assert_eq!((health.failures(), health.reloads()), (1, 0));
}
