// SPDX-License-Identifier: Apache-2.0

//! The task around the files, with paused time.

use portolan_catalog::ObjectChange;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch::channel;

use super::*;

const INTERVAL: Duration = Duration::from_secs(1);

fn start(dir: &TempDir, paths: &[&str]) -> (Receiver<Event>, CancellationToken) {
    let (events, token, _) = start_with_contact(dir, paths);
    (events, token)
}

fn start_with_contact(
    dir: &TempDir,
    paths: &[&str],
) -> (Receiver<Event>, CancellationToken, Arc<Contact>) {
    let (sink, events) = Sink::channel(1);
    let token = CancellationToken::new();
    let paths = paths.iter().map(|path| dir.path().join(path)).collect();
    let (_, paths) = channel(paths);
    let options = Options::new(INTERVAL);
    let contact = Arc::clone(&options.contact);
    tokio::spawn(watch(paths, Arc::from("c"), sink, options, token.clone()));
    (events, token, contact)
}

async fn changes(events: &mut Receiver<Event>) -> Vec<String> {
    match events.recv().await {
        Some(Event::Changes(changes)) => changes.iter().map(describe).collect(),
        other => panic!("expected changes: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn objects_are_sent_once_before_synced_and_changes_after_it() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), service("a", "1")).unwrap();
    let (mut events, token) = start(&dir, &[""]);
    assert_eq!(changes(&mut events).await, ["put Service c/prod/a"]);
    assert_eq!(events.recv().await, Some(Event::Synced));
    fs::write(dir.path().join("a.yaml"), service("a", "2")).unwrap();
    assert_eq!(changes(&mut events).await, ["put Service c/prod/a"]);
    fs::remove_file(dir.path().join("a.yaml")).unwrap();
    assert_eq!(changes(&mut events).await, ["delete Service c/prod/a"]);
    token.cancel();
    assert_eq!(events.recv().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_late_path_holds_synced_back() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), service("a", "1")).unwrap();
    let (mut events, _token) = start(&dir, &["a.yaml", "b.yaml"]);
    assert_eq!(changes(&mut events).await, ["put Service c/prod/a"]);
    match events.recv().await {
        Some(Event::FileProblems(problems)) => {
            assert_eq!(problems[0].file, dir.path().join("b.yaml"));
        }
        other => panic!("expected problems: {other:?}"),
    }
    // Without changes there are no events.
    let silence = tokio::time::timeout(10 * INTERVAL, events.recv()).await;
    assert!(silence.is_err(), "{silence:?}");
    fs::write(dir.path().join("b.yaml"), service("b", "2")).unwrap();
    assert_eq!(changes(&mut events).await, ["put Service c/prod/b"]);
    assert_eq!(events.recv().await, Some(Event::FileProblems(Vec::new())));
    assert_eq!(events.recv().await, Some(Event::Synced));
}

#[tokio::test(start_paused = true)]
async fn files_never_delete_objects_of_other_sources() {
    let dir = tempfile::tempdir().unwrap();
    let (mut events, _token) = start(&dir, &[""]);
    assert_eq!(events.recv().await, Some(Event::Synced));
    fs::write(dir.path().join("a.yaml"), service("a", "1")).unwrap();
    let event = events.recv().await;
    let Some(Event::Changes(changes)) = event else {
        panic!("expected changes: {event:?}")
    };
    // Another source of the same cluster would lose its objects.
    let retains = |change: &ObjectChange| matches!(change, ObjectChange::Retain { .. });
    assert!(!changes.iter().any(retains));
}

#[tokio::test(start_paused = true)]
async fn contact_ages_while_a_path_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let (mounted, away) = (dir.path().join("objects"), dir.path().join("away"));
    fs::create_dir(&mounted).unwrap();
    let (mut events, _token, contact) = start_with_contact(&dir, &["objects"]);
    assert_eq!(events.recv().await, Some(Event::Synced));
    assert!(contact.silence().is_some_and(|silence| silence < INTERVAL));

    fs::rename(&mounted, &away).unwrap();
    let problems = events.recv().await;
    assert!(
        matches!(problems, Some(Event::FileProblems(_))),
        "{problems:?}"
    );
    tokio::time::sleep(60 * INTERVAL).await;
    let silence = contact.silence().unwrap();
    assert!(silence >= 60 * INTERVAL, "{silence:?}");

    fs::rename(&away, &mounted).unwrap();
    assert_eq!(events.recv().await, Some(Event::FileProblems(Vec::new())));
    let silence = contact.silence().unwrap();
    assert!(silence < 2 * INTERVAL, "{silence:?}");
}

#[tokio::test(start_paused = true)]
async fn a_requested_reading_comes_at_once_and_follows_its_changes() {
    const DAY: Duration = Duration::from_secs(86_400);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), service("a", "1")).unwrap();
    let (sink, mut events) = Sink::channel(1);
    let options = Options::new(DAY);
    let requests = options.requests.clone();
    let (_, paths) = channel(vec![dir.path().to_owned()]);
    let token = CancellationToken::new();
    tokio::spawn(watch(paths, Arc::from("c"), sink, options, token));
    assert_eq!(changes(&mut events).await, ["put Service c/prod/a"]);
    assert_eq!(events.recv().await, Some(Event::Synced));

    let start = tokio::time::Instant::now();
    assert_eq!(requests.ask(), 1);
    assert_eq!(events.recv().await, Some(Event::Read(1)));
    fs::write(dir.path().join("a.yaml"), service("a", "2")).unwrap();
    assert_eq!((requests.ask(), requests.ask()), (2, 3));
    assert_eq!(changes(&mut events).await, ["put Service c/prod/a"]);
    assert_eq!(events.recv().await, Some(Event::Read(3)));
    assert!(start.elapsed() < DAY);
}

#[tokio::test(start_paused = true)]
async fn readings_are_counted_by_result_and_the_last_good_one_has_its_time() {
    const DAY: Duration = Duration::from_secs(86_400);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), service("a", "1")).unwrap();
    let (sink, mut events) = Sink::channel(1);
    let options = Options::new(DAY);
    let requests = options.requests.clone();
    let mut registry = Registry::default();
    options.counts.register(&mut registry);
    let lines = || {
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let has = |line: &str| lines().iter().any(|found| found == line);
    let dated = || {
        let mut lines = lines().into_iter();
        lines.find(|line| line.starts_with("config_last_success_timestamp_seconds "))
    };
    let before = dated();
    let (_, paths) = channel(vec![dir.path().to_owned()]);
    let token = CancellationToken::new();
    tokio::spawn(watch(paths, Arc::from("c"), sink, options, token));
    assert_eq!(changes(&mut events).await, ["put Service c/prod/a"]);
    assert_eq!(events.recv().await, Some(Event::Synced));
    assert!(has("reload_total{result=\"success\"} 1"), "{:?}", lines());
    assert!(has("reload_total{result=\"failure\"} 0"), "{:?}", lines());
    // One that was asked for counts without a change too.
    assert_eq!(requests.ask(), 1);
    assert_eq!(events.recv().await, Some(Event::Read(1)));
    assert!(has("reload_total{result=\"success\"} 2"), "{:?}", lines());
    let good = dated();
    assert!(good.is_some() && good != before, "{good:?}");

    fs::write(dir.path().join("a.yaml"), "kind: [").unwrap();
    assert_eq!(requests.ask(), 2);
    let problems = events.recv().await;
    assert!(
        matches!(problems, Some(Event::FileProblems(_))),
        "{problems:?}"
    );
    assert_eq!(events.recv().await, Some(Event::Read(2)));
    assert!(has("reload_total{result=\"success\"} 2"), "{:?}", lines());
    assert!(has("reload_total{result=\"failure\"} 1"), "{:?}", lines());
    assert_eq!(dated(), good);
}

#[tokio::test(start_paused = true)]
async fn other_paths_take_the_place_of_the_first_ones_once_they_can_be_listed() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        let directory = dir.path().join(name);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("x.yaml"), service(name, "1")).unwrap();
    }
    let at = |names: &[&str]| names.iter().map(|name| dir.path().join(name)).collect();
    let (sink, mut events) = Sink::channel(1);
    let (set, paths) = channel(at(&["a"]));
    let token = CancellationToken::new();
    tokio::spawn(watch(
        paths,
        Arc::from("c"),
        sink,
        Options::new(INTERVAL),
        token,
    ));
    assert_eq!(changes(&mut events).await, ["put Service c/prod/a"]);
    assert_eq!(events.recv().await, Some(Event::Synced));
    // A path that does not exist yet deletes nothing.
    set.send_replace(at(&["b", "late"]));
    match events.recv().await {
        Some(Event::FileProblems(found)) => {
            assert!(found[0].to_string().contains("late"), "{found:?}")
        }
        other => panic!("expected problems: {other:?}"),
    }
    fs::create_dir(dir.path().join("late")).unwrap();
    let moved = ["delete Service c/prod/a", "put Service c/prod/b"];
    let mut found = changes(&mut events).await;
    found.sort();
    assert_eq!(found, moved);
    assert_eq!(events.recv().await, Some(Event::FileProblems(Vec::new())));
}
