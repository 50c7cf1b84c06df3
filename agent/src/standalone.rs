// SPDX-License-Identifier: Apache-2.0

//! The table from files on this host: the controller's own selection, without a controller.

use std::sync::Arc;
use std::time::Instant;

use portolan_catalog::ObjectChange;
use portolan_model::{NodeKey, NodeTable};
use portolan_select::{Pipeline, SelectConfig, TableDelta};
use portolan_source::file::HooksOf;
use portolan_source::{Event, ProblemLog};
use portolan_subscription::{GuardConfig, at};
use tokio::sync::{mpsc, watch};

use crate::director::HostDirector;
use crate::subscribe::{
    ClusterPin, HeldView, Saved, Saver, Stats, Store, Subscribed, TableInForce, load,
};

/// Turns a source's events into this node's table. If files lose much at once, the deletions are
/// held back, also those since the last run.
#[derive(Debug)]
pub struct Standalone {
    node: NodeKey,
    problems: ProblemLog,
    select: SelectConfig,
    table: Arc<NodeTable>,
    revision: u64,
    in_force: TableInForce,
    saver: Saver,
    stats: Arc<Stats>,
    readings: watch::Sender<Reading>,
    director: HostDirector,
    hooks: watch::Sender<Arc<HooksOf>>,
    /// Whether the host is asked for other settings than the last table's.
    director_changed: bool,
    /// Problems of files that are not problems of one known object.
    file_problems: Vec<String>,
}

/// A reading of the files that was requested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// Number of the last request before it.
    pub number: u64,
    /// Revision of the table with all that was read; `None` while some file has never been read.
    pub revision: Option<u64>,
    /// Everything that is wrong with the files and their objects.
    pub problems: Vec<String>,
}

/// The configuration of a [`Standalone`].
#[derive(Debug)]
pub struct StandaloneConfig {
    /// The node.
    pub node: NodeKey,
    /// The reporter that logs and counts problems of objects.
    pub problems: ProblemLog,
    /// The configuration of endpoint selection.
    pub select: SelectConfig,
    /// Limits of the deletion guard.
    pub guard: GuardConfig,
    /// The directory of the saved table.
    pub state_dir: std::path::PathBuf,
    /// Receives each requested reading.
    pub readings: watch::Sender<Reading>,
    /// The director of this host.
    pub director: HostDirector,
    /// Receives the hooks of load balancers.
    pub hooks: watch::Sender<Arc<HooksOf>>,
}

impl Standalone {
    /// Creates a source that publishes tables in `tables` and held deletions in `held`.
    #[must_use]
    pub fn new(
        config: StandaloneConfig,
        tables: watch::Sender<Option<Arc<Subscribed>>>,
        held: HeldView,
        stats: Arc<Stats>,
    ) -> Self {
        let StandaloneConfig {
            node,
            problems,
            select,
            guard,
            state_dir,
            readings,
            director,
            hooks,
        } = config;
        let store = Store {
            directory: state_dir,
            cluster: node.cluster.to_string(),
            node: node.name.to_string(),
            pin: ClusterPin::default(),
        };
        Self {
            node,
            problems,
            select,
            table: Arc::default(),
            revision: 0,
            in_force: TableInForce::new(guard, held, tables, Arc::clone(&stats)),
            saver: Saver::new(Some(Arc::new(store)), Arc::clone(&stats)),
            stats,
            readings,
            director,
            hooks,
            director_changed: false,
            file_problems: Vec::new(),
        }
    }

    /// Runs until the source ends. Publishes no table before the source has synced.
    pub async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        if let Some(last) = load(&self.saver, &self.stats).await {
            let position = (0, self.revision);
            self.in_force
                .restore(position, last.committed.table, last.in_force);
        }
        let mut pipeline = Pipeline::new(self.select);
        let (mut synced, mut read) = (false, None);
        while let Some(event) = self.next(&mut events).await {
            match event {
                Event::Changes(changes) => changes.into_iter().for_each(|c| pipeline.apply(c)),
                Event::FileProblems(problems) => {
                    self.problems.update_files(&problems);
                    self.file_problems = problems.iter().map(ToString::to_string).collect();
                }
                Event::Director(director) => {
                    self.director_changed |= self.director.follow(director);
                }
                Event::Hooks(hooks) => drop(self.hooks.send_replace(hooks)),
                Event::Synced => synced = true,
                Event::Read(number) => read = Some(number),
            }
            // Events that have arrived already are one transition.
            if !events.is_empty() {
                continue;
            }
            if synced {
                let delta = pipeline.flush();
                self.problems.update(&pipeline.problems());
                // A revision of its own: a request to read the files waits until it is programmed.
                let is_other = std::mem::take(&mut self.director_changed);
                if self.revision == 0 || is_other || !delta.is_empty() {
                    self.commit(delta);
                }
            }
            if let Some(number) = read.take() {
                self.readings.send_replace(Reading {
                    number,
                    revision: synced.then_some(self.revision),
                    problems: [self.file_problems.clone(), problems_of(&pipeline)].concat(),
                });
            }
        }
        self.saver.settle().await;
        if self.saver.due().is_some() {
            self.save();
            self.saver.settle().await;
        }
    }

    /// The next event; meanwhile, deletions are released and tables are written to disk.
    async fn next(&mut self, events: &mut mpsc::Receiver<Event>) -> Option<Event> {
        loop {
            let (save_at, held_until) = (self.saver.due(), self.in_force.held_until());
            tokio::select! {
                event = events.recv() => return event,
                () = at(save_at) => self.save(),
                () = at(held_until) => {
                    self.in_force.expire();
                    self.changed();
                }
                () = self.in_force.confirmed() => {
                    self.in_force.release();
                    self.changed();
                }
            }
        }
    }

    fn commit(&mut self, delta: TableDelta) {
        self.revision += 1;
        apply(Arc::make_mut(&mut self.table), &self.node, delta);
        // Each reading of the files lists all that there is.
        self.in_force.begin_listing();
        let table = Subscribed::new((0, self.revision), Arc::clone(&self.table));
        self.in_force.take_table(table);
        self.changed();
    }

    /// Has the table be written to disk. Before the first reading of all files there is none, and that of the last run
    /// stays there.
    fn changed(&mut self) {
        if self.revision > 0 {
            self.saver.changed(Instant::now());
        }
    }

    fn save(&mut self) {
        let (table, in_force) = (&self.table, &self.in_force);
        let saved = || Saved::of_table(table).with_in_force(in_force.with_withheld());
        self.saver.begin(saved, Instant::now());
    }
}

/// The table of one node from changes that are the whole content of a source, and the problems of
/// objects in it.
#[must_use]
pub fn table_of(
    changes: Vec<ObjectChange>,
    node: &NodeKey,
    select: SelectConfig,
) -> (NodeTable, Vec<String>) {
    let mut pipeline = Pipeline::new(select);
    changes.into_iter().for_each(|c| pipeline.apply(c));
    let mut table = NodeTable::default();
    apply(&mut table, node, pipeline.flush());
    (table, problems_of(&pipeline))
}

fn problems_of(pipeline: &Pipeline) -> Vec<String> {
    let of_object = pipeline.problems().into_iter();
    let texts = of_object.flat_map(|(object, problems)| {
        let text = move |problem| format!("{object}: {problem}");
        problems.into_iter().map(text)
    });
    texts.collect()
}

/// Makes one node's part of a delta.
fn apply(table: &mut NodeTable, node: &NodeKey, mut delta: TableDelta) {
    for (key, record) in delta.records {
        match record {
            Some(record) => table.records.insert(key, record),
            None => table.records.remove(&key),
        };
    }
    for (key, lists) in delta.lists.remove(node).unwrap_or_default() {
        match lists {
            Some(lists) => table.lists.insert(key, lists),
            None => table.lists.remove(&key),
        };
    }
    if let Some(info) = delta.nodes.remove(node) {
        table.node = info;
    }
}

#[cfg(test)]
mod tests {
    mod early;

    use portolan_catalog::{
        Endpoint, EndpointSlice, Object, ObjectChange, ObjectKey, Service, ServicePort, SlicePort,
        TrafficPolicy,
    };
    use portolan_model::{Family, Protocol};
    use portolan_probe::Programs;

    use super::*;
    use crate::args::Source;
    use crate::backends::CheckControls;
    use crate::director::HostFlags;
    use crate::reload::Reload;
    use crate::subscribe::Report;

    fn key(name: &str) -> ObjectKey {
        ObjectKey {
            cluster: "".into(),
            namespace: "ns".into(),
            name: name.into(),
        }
    }

    fn objects() -> Vec<ObjectChange> {
        let (name, protocol) = (Arc::from(""), Protocol::Tcp);
        let service = Service {
            cluster_ips: vec!["10.96.0.1".parse().unwrap()],
            internal_policy: TrafficPolicy::Local,
            ports: vec![ServicePort {
                name: Arc::clone(&name),
                protocol,
                port: 80,
                node_port: None,
            }],
            ..Service::new(key("web"))
        };
        let endpoint = |last: u8, node: &str| Endpoint {
            node: Some(node.into()),
            ..Endpoint::new([10, 244, 0, last].into())
        };
        let slice = EndpointSlice {
            key: key("web-1"),
            service: "web".into(),
            family: Family::V4,
            ports: vec![SlicePort {
                name,
                protocol,
                port: 8080,
            }],
            endpoints: vec![endpoint(1, "here"), endpoint(2, "there")],
            triggered_ms: None,
        };
        [Object::Service(service), Object::EndpointSlice(slice)]
            .map(|object| ObjectChange::Put {
                object,
                problems: vec![],
            })
            .into()
    }

    fn standalone(
        directory: &std::path::Path,
        tables: watch::Sender<Option<Arc<Subscribed>>>,
        held: HeldView,
    ) -> Standalone {
        let config = StandaloneConfig {
            node: NodeKey {
                cluster: "".into(),
                name: "here".into(),
            },
            problems: ProblemLog::default(),
            select: SelectConfig::default(),
            guard: GuardConfig::default(),
            state_dir: directory.to_owned(),
            readings: watch::Sender::default(),
            director: HostDirector::new(
                HostFlags::default(),
                directory,
                Programs::default(),
                CheckControls::default(),
            ),
            hooks: watch::Sender::default(),
        };
        Standalone::new(config, tables, held, Arc::default())
    }

    /// `count` Services, one for each address.
    fn services(count: u8) -> Vec<ObjectChange> {
        let service = |i: u8| {
            let port = ServicePort {
                name: "".into(),
                protocol: Protocol::Tcp,
                port: 80,
                node_port: None,
            };
            Object::Service(Service {
                cluster_ips: vec![[10, 96, 1, i].into()],
                ports: vec![port],
                ..Service::new(key(&format!("s{i}")))
            })
        };
        let put = |object| ObjectChange::Put {
            object,
            problems: vec![],
        };
        (0..count).map(service).map(put).collect()
    }

    fn emptied(count: u8) -> Vec<ObjectChange> {
        let delete = |i| {
            ObjectChange::Delete(portolan_catalog::ObjectRef {
                kind: portolan_catalog::Kind::Service,
                key: key(&format!("s{i}")),
            })
        };
        (0..count).map(delete).collect()
    }

    /// Waits until the table in force has so many records, and another revision than 0.
    async fn until(table: &mut watch::Receiver<Option<Arc<Subscribed>>>, records: usize) {
        let has = |t: &Option<Arc<Subscribed>>| {
            t.as_ref().is_some_and(|t| t.table.records.len() == records)
        };
        let wait = tokio::time::timeout(std::time::Duration::from_secs(20), table.wait_for(has));
        wait.await.expect("in time").unwrap();
    }

    #[tokio::test]
    async fn a_directory_that_is_emptied_deletes_nothing_before_a_confirmation() {
        let dir = tempfile::tempdir().unwrap();
        let (tables, mut table) = watch::channel(None);
        let held = HeldView::default();
        let (events, receiver) = mpsc::channel(8);
        let first = tokio::spawn(standalone(dir.path(), tables, held.clone()).run(receiver));
        for event in [Event::Changes(services(60)), Event::Synced] {
            events.send(event).await.unwrap();
        }
        until(&mut table, 60).await;
        events.send(Event::Changes(emptied(60))).await.unwrap();
        // An addition applies at once.
        events.send(Event::Changes(objects())).await.unwrap();
        until(&mut table, 61).await;
        assert_eq!(held.held().unwrap().loss.lost.records, 60);
        drop(events);
        first.await.unwrap();

        // The same over a restart, with a directory that is empty from the beginning.
        let (tables, mut table) = watch::channel(None);
        let held = HeldView::default();
        let (events, receiver) = mpsc::channel(8);
        let second = tokio::spawn(standalone(dir.path(), tables, held.clone()).run(receiver));
        for event in [Event::Changes(objects()), Event::Synced] {
            events.send(event).await.unwrap();
        }
        until(&mut table, 61).await;
        assert_eq!(held.confirm().unwrap().loss.lost.records, 60);
        until(&mut table, 1).await;
        drop(events);
        second.await.unwrap();
    }

    #[tokio::test]
    async fn a_reload_says_that_deletions_are_held_back() {
        let dir = tempfile::tempdir().unwrap();
        let (tables, mut table) = watch::channel(None);
        let held = HeldView::default();
        // The kernel has every revision at once.
        let programmed = Report {
            epoch: 0,
            revision: u64::MAX,
            duration: std::time::Duration::ZERO,
            errors: Vec::new(),
            checked: 0,
        };
        let (_reports, receiver) = watch::channel(Some(programmed));
        let reload = Reload::new(Source::File, receiver, held.clone());
        let mut standalone = standalone(dir.path(), tables, held.clone());
        standalone.readings = reload.readings();
        let (events, receiver) = mpsc::channel(8);
        let task = tokio::spawn(standalone.run(receiver));
        for event in [Event::Changes(services(60)), Event::Synced, Event::Read(1)] {
            events.send(event).await.unwrap();
        }
        assert_eq!(reload.run().await.unwrap().problems, [""; 0]);
        for event in [Event::Changes(emptied(60)), Event::Read(2)] {
            events.send(event).await.unwrap();
        }
        let problems = reload.run().await.unwrap().problems;
        assert_eq!(problems.len(), 1, "{problems:?}");
        let expected = "the deletion of 60 of 60 records (0 of 0 endpoints) is held back";
        assert!(problems[0].starts_with(expected), "{problems:?}");
        // A reading without another change says it again, until it is confirmed.
        events.send(Event::Read(3)).await.unwrap();
        assert_eq!(reload.run().await.unwrap().problems.len(), 1);
        assert!(held.confirm().is_some());
        until(&mut table, 0).await;
        events.send(Event::Read(4)).await.unwrap();
        assert_eq!(reload.run().await.unwrap().problems, [""; 0]);
        drop(events);
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_requested_reading_follows_what_was_read() {
        let dir = tempfile::tempdir().unwrap();
        let (tables, table) = watch::channel(None);
        let (events, receiver) = mpsc::channel(8);
        let standalone = standalone(dir.path(), tables, HeldView::default());
        let mut readings = standalone.readings.subscribe();
        let task = tokio::spawn(standalone.run(receiver));
        events.send(Event::Read(1)).await.unwrap();
        let early = readings.wait_for(|r| r.number == 1).await.unwrap().clone();
        assert_eq!(early.revision, None, "nothing was read yet");
        for event in [Event::Changes(objects()), Event::Synced, Event::Read(2)] {
            events.send(event).await.unwrap();
        }
        let first = readings.wait_for(|r| r.number == 2).await.unwrap().clone();
        assert_eq!((first.revision, first.problems.len()), (Some(1), 0));
        assert_eq!(table.borrow().as_ref().unwrap().revision, 1);
        // Without a change the revision stays.
        events.send(Event::Read(3)).await.unwrap();
        let second = readings.wait_for(|r| r.number == 3).await.unwrap().clone();
        assert_eq!(second.revision, Some(1));
        drop(events);
        task.await.unwrap();
    }
}
