// SPDX-License-Identifier: Apache-2.0

//! Tests of the sources that a policy starts and stops, with paused time.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use portolan_catalog::Kind;
use portolan_federate::state::SILENCE;
use portolan_source::Event;
use tempfile::TempDir;

use super::*;
use crate::edges::EdgePlans;
use crate::mcs::Mcs;

mod served;
mod tokens;

const INTERVAL: Duration = Duration::from_secs(1);

struct Rig {
    dir: TempDir,
    changes: mpsc::Receiver<ClusterChange>,
    sources: ClusterSources,
    states: ClusterStates,
    holds: Arc<HeldDeletions>,
    seats: EdgeSeats,
    plans: EdgePlans,
    issuers: watch::Receiver<Arc<Issuers>>,
    _stop: DropGuard,
}

impl Rig {
    /// A supervisor of a policy with these clusters, each with the Service `web` in a file of its own.
    fn new(clusters: &[&str]) -> Self {
        Self::reading(clusters, |paths, cluster, sink, options, token| {
            Box::pin(file::watch(paths, cluster, sink, options, token))
        })
    }

    /// The same with another source.
    fn reading(clusters: &[&str], read: Read) -> Self {
        Self::at_home(clusters, read, Home::default())
    }

    /// The same with an API server of Secrets.
    fn at_home(clusters: &[&str], read: Read, home: Home) -> Self {
        Self::every(INTERVAL, clusters, read, home)
    }

    /// The same with another interval.
    fn every(interval: Duration, clusters: &[&str], read: Read, home: Home) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let policy = dir.path().join("policy.yaml");
        fs::write(&policy, policy_of(dir.path(), clusters)).unwrap();
        for cluster in clusters {
            fs::write(dir.path().join(format!("{cluster}.yaml")), service()).unwrap();
        }
        let (sender, changes) = mpsc::channel(8);
        let (token, sources) = (CancellationToken::new(), ClusterSources::default());
        let holds = Arc::new(HeldDeletions::default());
        let guard = (GuardConfig::default(), Arc::clone(&holds));
        let (shared, states) = (Arc::clone(&sources), ClusterStates::default());
        let mcs = Mcs::alone();
        let plans = mcs.plans();
        let supervisor = Supervisor::new(
            vec![policy],
            interval,
            guard,
            sender,
            shared,
            states.clone(),
            mcs.members(),
        );
        let seats = EdgeSeats::default();
        let supervisor = Supervisor { read, ..supervisor }.at_home(home);
        let supervisor = supervisor.with_edges(seats.clone(), false);
        let (sender, issuers) = watch::channel(Arc::default());
        let supervisor = supervisor.with_tokens(sender);
        tokio::spawn(supervisor.run(token.clone()));
        Self {
            dir,
            changes,
            sources,
            states,
            holds,
            seats,
            plans,
            issuers,
            _stop: token.drop_guard(),
        }
    }

    /// Replaces a file at once: a reader that meets a plain write may find it empty.
    fn replace(&self, name: &str, text: &str) {
        let new = self.dir.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.dir.path().join(name)).unwrap();
    }

    fn write(&self, text: &str) {
        self.replace("policy.yaml", text);
    }

    /// The next change but for the policy.
    async fn change(&mut self) -> Option<ClusterChange> {
        loop {
            match self.changes.recv().await {
                Some(ClusterChange::Policies { .. }) => {}
                other => return other,
            }
        }
    }

    async fn joined(&mut self) -> (Arc<str>, mpsc::Receiver<Event>) {
        match self.change().await {
            Some(ClusterChange::Joined {
                cluster, events, ..
            }) => (cluster, events),
            other => panic!("no cluster joined: {other:?}"),
        }
    }

    async fn problems(&mut self) -> Vec<String> {
        match self.change().await {
            Some(ClusterChange::Problems(problems)) => problems,
            other => panic!("no problems: {other:?}"),
        }
    }
}

fn policy_of(dir: &Path, clusters: &[&str]) -> String {
    let of = |(index, name): (usize, &&str)| {
        let path = dir.join(format!("{name}.yaml"));
        cluster(name, &format!("{{files: [{}]}}", path.display()), index)
    };
    clusters.iter().enumerate().map(of).collect()
}

fn cluster(name: &str, access: &str, index: usize) -> String {
    format!(
        "apiVersion: portolan.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}}}\nspec:\n  \
         access: {access}\n  network: {{podCIDRs: [10.{index}.0.0/16]}}\n---\n"
    )
}

fn service() -> &'static str {
    "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: prod}\n\
     spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n"
}

/// The objects that a source has sent until it synced.
async fn synced(events: &mut mpsc::Receiver<Event>) -> usize {
    let mut objects = 0;
    loop {
        match events.recv().await {
            Some(Event::Changes(changes)) => objects += changes.len(),
            Some(Event::Synced) => return objects,
            other => panic!("not synced: {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_cluster_has_a_source_that_starts_and_stops_with_it() {
    let mut rig = Rig::new(&["eu-1", "us-1"]);
    let (eu, mut of_eu) = rig.joined().await;
    let (us, mut of_us) = rig.joined().await;
    assert_eq!((&*eu, &*us), ("eu-1", "us-1"));
    // The Service, and its namespace.
    assert_eq!((synced(&mut of_eu).await, synced(&mut of_us).await), (2, 2));
    assert_eq!(rig.sources.lock().unwrap().len(), 2);

    rig.write(&policy_of(rig.dir.path(), &["us-1", "ap-1"]));
    match rig.change().await {
        Some(ClusterChange::Left(cluster)) => assert_eq!(&*cluster, "eu-1"),
        other => panic!("nobody left: {other:?}"),
    }
    assert!(of_eu.recv().await.is_none(), "its source goes on");
    // The new one waits for its file; the other one goes on.
    let (ap, mut of_ap) = rig.joined().await;
    assert_eq!(&*ap, "ap-1");
    assert!(matches!(of_ap.recv().await, Some(Event::FileProblems(_))));
    rig.replace("ap-1.yaml", service());
    rig.replace("us-1.yaml", "# none\n");
    assert!(matches!(of_us.recv().await, Some(Event::Changes(_))));
    let known: Vec<_> = rig.sources.lock().unwrap().keys().cloned().collect();
    assert_eq!(known, ["ap-1".into(), "us-1".into()]);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_of_files_that_are_read_seldom_is_not_out_of_contact() {
    let read: Read = |paths, cluster, sink, options, token| {
        Box::pin(file::watch(paths, cluster, sink, options, token))
    };
    let hour = Duration::from_secs(3_600);
    let mut rig = Rig::every(hour, &["eu-1"], read, Home::default());
    let (_, mut events) = rig.joined().await;
    synced(&mut events).await;
    let contact = rig.sources.lock().unwrap()["eu-1"].clone();
    for second in 0..120 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let silence = contact.silence().unwrap();
        assert!(silence < SILENCE, "{silence:?} after {second} s");
    }
}

#[tokio::test(start_paused = true)]
async fn an_access_that_cannot_be_used_is_named_and_the_source_goes_on() {
    let mut rig = Rig::new(&["eu-1"]);
    let (_, mut events) = rig.joined().await;
    synced(&mut events).await;
    rig.write(&cluster("eu-1", "{local: {}}", 0));
    let problems = rig.problems().await;
    assert!(
        problems[0].contains("Cluster eu-1: spec.access.local"),
        "{problems:?}"
    );
    rig.replace("eu-1.yaml", "# none\n");
    assert!(matches!(events.recv().await, Some(Event::Changes(_))));
    rig.write(&policy_of(rig.dir.path(), &["eu-1"]));
    assert_eq!(rig.problems().await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_policy_without_clusters_is_nothing_to_wait_for() {
    let mut rig = Rig::new(&[]);
    let text = rig.change().await;
    assert!(matches!(text, Some(ClusterChange::None)), "{text:?}");
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_cannot_be_read_is_not_one_without_clusters() {
    let mut rig = Rig::new(&[]);
    rig.write("kind: [");
    let problems = rig.problems().await;
    assert!(problems[0].contains("policy.yaml:1:"), "{problems:?}");
    rig.write(&policy_of(rig.dir.path(), &["eu-1"]));
    let (cluster, _events) = rig.joined().await;
    assert_eq!(&*cluster, "eu-1", "nobody has said that there are none");
}

/// A source that panics at its first start, after it has sent its objects.
fn faulty(
    paths: watch::Receiver<Vec<PathBuf>>,
    cluster: Arc<str>,
    sink: Sink,
    options: file::Options,
    token: CancellationToken,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    static STARTS: AtomicUsize = AtomicUsize::new(0);
    Box::pin(async move {
        if STARTS.fetch_add(1, Ordering::Relaxed) == 0 {
            sink.send(Event::Synced).await.unwrap();
            panic!("a bug of a source");
        }
        file::watch(paths, cluster, sink, options, token).await;
    })
}

#[tokio::test(start_paused = true)]
async fn a_source_that_panics_is_started_again() {
    let mut rig = Rig::reading(&["eu-1"], faulty);
    let (_, mut events) = rig.joined().await;
    assert_eq!(events.recv().await, Some(Event::Synced));
    assert_eq!(events.recv().await, None, "it panicked");
    // The same cluster joins again, with another channel.
    let (cluster, mut events) = rig.joined().await;
    assert_eq!((&*cluster, synced(&mut events).await), ("eu-1", 2));
    assert_eq!(rig.states.lock().restarts["eu-1"], 1);
}

/// A source that panics once, a while after it has sent its objects.
fn failing(
    paths: watch::Receiver<Vec<PathBuf>>,
    cluster: Arc<str>,
    sink: Sink,
    options: file::Options,
    token: CancellationToken,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    static STARTS: AtomicUsize = AtomicUsize::new(0);
    Box::pin(async move {
        let watch = file::watch(paths, cluster, sink, options, token);
        if STARTS.fetch_add(1, Ordering::Relaxed) > 0 {
            return watch.await;
        }
        let _ = timeout(Duration::from_millis(9500), watch).await;
        panic!("a bug of a source");
    })
}

#[tokio::test(start_paused = true)]
async fn a_source_that_panicked_deletes_nothing_unconfirmed_when_it_starts_again() {
    let mut rig = Rig::reading(&["eu-1"], failing);
    let one = |i| format!("---\n{}", service().replace("web", &format!("s{i}")));
    rig.replace("eu-1.yaml", &(0..100).map(one).collect::<String>());
    let (_, mut events) = rig.joined().await;
    // With the namespace.
    assert_eq!(synced(&mut events).await, 101);
    while events.recv().await.is_some() {}

    rig.replace("eu-1.yaml", service());
    let (_, mut events) = rig.joined().await;
    // The writer deletes what it is not sent again.
    assert_eq!(synced(&mut events).await, 102);
    let held = rig.holds.held()[&("eu-1".into(), Kind::Service)];
    assert_eq!((held.lost.objects, held.of.objects), (100, 101));

    rig.write(&policy_of(rig.dir.path(), &["us-1"]));
    let change = rig.change().await;
    assert!(matches!(change, Some(ClusterChange::Left(_))), "{change:?}");
    let mut held = rig.holds.subscribe();
    held.wait_for(|held| held.is_empty()).await.unwrap();
}

const SECRET: &str = "/api/v1/namespaces/default/secrets/eu";

fn secret(text: &str) -> serde_json::Value {
    let data = k8s_openapi::ByteString(text.as_bytes().to_vec());
    serde_json::json!({"metadata": {"name": "eu"}, "data": {"kubeconfig": data}})
}

/// A kubeconfig of a Secret; nobody answers there.
fn kubeconfig(user: &str) -> String {
    format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: a, user: b}}}}]\n\
         clusters: [{{name: a, cluster: {{server: 'https://127.0.0.1:1'}}}}]\nusers: [{{name: b, user: {user}}}]\n"
    )
}

#[tokio::test(start_paused = true)]
async fn a_kubeconfig_is_read_from_a_secret_and_what_is_wrong_with_it_is_named() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let api = crate::fake_api::FakeApi::default();
    let read: Read = |_, _, _, _, token| Box::pin(token.cancelled_owned());
    let mut rig = Rig::at_home(&[], read, Home::of(api.client()));
    assert!(matches!(rig.change().await, Some(ClusterChange::None)));
    rig.write(&cluster("eu", "{kubeconfigSecret: {name: eu}}", 1));
    let expect = async |rig: &mut Rig, part: &str| {
        let problems = timeout(Duration::from_secs(300), rig.problems()).await;
        let problems = problems.unwrap_or_else(|_| panic!("no problems: {part}"));
        assert!(
            problems.iter().any(|one| one.contains(part)),
            "{problems:?}"
        );
    };
    expect(
        &mut rig,
        "Cluster eu: spec.access.kubeconfigSecret: Secret eu: missing",
    )
    .await;
    api.put(SECRET, serde_json::json!({"metadata": {"name": "eu"}}));
    expect(&mut rig, "Secret eu: data.kubeconfig: missing").await;
    api.put(SECRET, secret(&kubeconfig("{tokenFile: /etc/shadow}")));
    expect(&mut rig, "KubeconfigForbidden: users[b].user.tokenFile").await;
    api.put(SECRET, secret(&kubeconfig("{token: t}")));
    let joined = loop {
        match rig.change().await {
            Some(ClusterChange::Joined { cluster, .. }) => break cluster,
            Some(ClusterChange::Problems(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(&*joined, "eu");
    // Not with each look at the policy.
    api.requests();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let read = api.requests().len();
    assert!((1..=3).contains(&read), "{read} readings in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_may_change_from_files_to_an_edge_and_back() {
    let mut rig = Rig::new(&["eu-1"]);
    let (_, mut of_files) = rig.joined().await;
    assert_eq!(synced(&mut of_files).await, 2);
    assert!(!rig.seats.has("eu-1"));

    rig.write(&cluster("eu-1", "{edge: {}}", 1));
    let (name, of_edge) = rig.joined().await;
    assert_eq!(&*name, "eu-1");
    let absent = "Cluster eu-1: spec.access.edge: no edge controller is connected";
    assert_eq!(rig.problems().await, [absent]);
    assert!(rig.seats.has("eu-1") && of_edge.is_empty());
    assert!(
        of_files.recv().await.is_none(),
        "the files are read no more"
    );
    rig.plans.ask(&name);
    assert_eq!(rig.plans.clusters(), [Arc::clone(&name)]);
    let contact = rig.sources.lock().unwrap()["eu-1"].clone();
    assert!(matches!(contact, SourceContact::Edge(_)));
    assert_eq!(contact.silence(), None, "nothing was heard yet");

    let clusters = policy_of(rig.dir.path(), &["eu-1"]);
    rig.write(&clusters);
    let (_, mut of_files) = rig.joined().await;
    assert_eq!(synced(&mut of_files).await, 2);
    assert!(!rig.seats.has("eu-1"), "edges are refused again");
    assert!(rig.plans.clusters().is_empty(), "plans are still made");
}

#[tokio::test(start_paused = true)]
async fn the_edge_of_a_cluster_that_is_deleted_is_refused_and_its_source_ends() {
    let mut rig = Rig::new(&["us-1"]);
    let (_, mut of_files) = rig.joined().await;
    synced(&mut of_files).await;
    let others = policy_of(rig.dir.path(), &["us-1"]);
    rig.write(&(others.clone() + &cluster("eu-1", "{edge: {}}", 1)));
    let (name, mut of_edge) = rig.joined().await;
    assert_eq!(&*name, "eu-1");
    assert_eq!(rig.problems().await.len(), 1, "no edge is connected");
    assert!(rig.seats.has("eu-1"));

    rig.write(&others);
    let change = rig.change().await;
    assert!(matches!(change, Some(ClusterChange::Left(_))), "{change:?}");
    assert!(!rig.seats.has("eu-1"), "a credential opens it still");
    assert!(of_edge.recv().await.is_none(), "its source goes on");
}
