// SPDX-License-Identifier: Apache-2.0

use portolan_federate::gateway::PortName;
use portolan_model::Protocol;

use super::*;

#[test]
fn what_is_kept_is_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name| directory.path().join(name);
    assert!(Saved::read(directory.path()).unwrap().imports.is_empty());
    let status = Status {
        phase: Phase::Returning,
        step: 3,
        reach_step: 5,
        drain_step: 3,
        drained: true,
        last_contact: Some(Moment(Duration::from_secs(7))),
        stale_for: Duration::from_millis(1500),
        recent_losses: vec![Moment(Duration::from_secs(3))],
        losses: 9,
    };
    let name = ImportName {
        namespace: "shop".into(),
        name: "web".into(),
    };
    let kept = Kept {
        ips: vec![[10, 112, 0, 1].into(), "fd00::1".parse().unwrap()],
        winner: Some("eu-1".into()),
        clusters: Arc::new(["eu-1".into(), "us-1".into()].into()),
    };
    let key = import_key(&"eu-1".into(), &name);
    let clusters = vec![SavedCluster::new(&"eu-1".into(), &status)];
    let other = ImportName {
        name: "web@b".into(),
        ..name.clone()
    };
    let other = (import_key(&"eu-1".into(), &other), Kept::default());
    let all = [(key, kept), other];
    let imports = all
        .iter()
        .filter_map(|(key, kept)| SavedImport::new(key, kept));
    let imports: Vec<_> = imports.collect();
    let text = serde_saphyr::to_string(&clusters).unwrap();
    std::fs::write(path(CLUSTERS), text).unwrap();
    let text = serde_saphyr::to_string(&imports).unwrap();
    std::fs::write(path(ALLOCATIONS), text).unwrap();
    let saved = Saved::read(directory.path()).unwrap();
    assert_eq!(saved.statuses, [("eu-1".into(), status)].into());
    assert_eq!(saved.imports, all.into());
    std::fs::write(path(DRAINS), "- {cluster: eu-1, to: 50, overSeconds: 20}\n").unwrap();
    let saved = Saved::read(directory.path()).unwrap();
    assert_eq!(saved.drains["eu-1"].to, 50);
    std::fs::write(path(DRAINS), "[").unwrap();
    let error = format!("{:#}", Saved::read(directory.path()).unwrap_err());
    assert!(error.contains(DRAINS), "{error}");
}

/// The name of one import of many.
fn numbered(number: u16) -> ImportName {
    ImportName {
        namespace: "shop".into(),
        name: format!("web-{number}").into(),
    }
}

#[test]
fn twenty_thousand_imports_are_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let kept = Kept {
        ips: vec![[10, 112, 0, 1].into()],
        winner: Some("eu-1".into()),
        clusters: Arc::new(["eu-1".into(), "us-1".into()].into()),
    };
    let imports: BTreeMap<_, _> = (0..20_000)
        .map(|number| (import_key(&"eu-1".into(), &numbered(number)), kept.clone()))
        .collect();
    let all = imports.iter();
    let all: Vec<_> = all
        .filter_map(|(key, kept)| SavedImport::new(key, kept))
        .collect();
    let text = serde_saphyr::to_string(&all).unwrap();
    std::fs::write(directory.path().join(ALLOCATIONS), text).unwrap();
    let saved = Saved::read(directory.path()).unwrap();
    assert!(saved.imports == imports);
}

#[test]
fn twenty_thousand_ports_are_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let of_eu: GatewayPorts = (0..20_000)
        .map(|number| {
            let name = PortName {
                service: numbered(number),
                port: "http".into(),
                protocol: Protocol::Tcp,
            };
            (name, 20_000 + number)
        })
        .collect();
    let ports: BTreeMap<Arc<str>, GatewayPorts> = [("eu-1".into(), of_eu)].into();
    let text = serde_saphyr::to_string(&ports::saved(&ports)).unwrap();
    std::fs::write(directory.path().join(GATEWAYS), text).unwrap();
    let saved = Saved::read(directory.path()).unwrap();
    assert!(saved.ports == ports);
}

#[tokio::test(start_paused = true)]
async fn content_that_cannot_be_written_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let blocked = directory.path().join("state");
    // A file stands where the directory must be.
    std::fs::write(&blocked, "").unwrap();
    let path = blocked.join(DRAINS);
    let (sender, contents) = watch::channel(String::new());
    let ending = tokio_util::sync::CancellationToken::new();
    let following = tokio::spawn(follow(path.clone(), contents, ending.clone()));
    sender.send_replace("first".to_owned());
    tokio::time::sleep(RETRY * 2).await;
    std::fs::remove_file(&blocked).unwrap();
    tokio::time::sleep(RETRY * 2).await;
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "first");
    sender.send_replace("last".to_owned());
    ending.cancel();
    following.await.unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "last");
}
