// SPDX-License-Identifier: Apache-2.0

//! A feed with its store and its catalog.

use super::*;

/// A feed whose consumer is a catalog.
pub(super) struct Rig {
    pub(super) feed: Feed,
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) catalog: Catalog,
    pub(super) keys: BTreeMap<String, (i64, String)>,
    pub(super) revision: i64,
    pub(super) synced: usize,
    pub(super) strays: Vec<String>,
    pub(super) generations: usize,
    pub(super) holds: Arc<HeldDeletions>,
}

impl Rig {
    pub(super) fn new() -> Self {
        let (sink, events) = Sink::channel(64);
        let stats = Arc::new(Stats::default());
        let holds = Arc::clone(stats.holds());
        let prefix = "/portolan".parse().unwrap();
        let feed = Feed::new(prefix, "".into(), GuardConfig::default(), sink, stats);
        Self {
            feed,
            events,
            catalog: Catalog::default(),
            keys: BTreeMap::new(),
            revision: 1,
            synced: 0,
            strays: Vec::new(),
            generations: 0,
            holds,
        }
    }

    pub(super) fn apply(&mut self) {
        let mut dirty = DirtySet::default();
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Changes(changes) => {
                    for change in changes {
                        let is_new = matches!(change, ObjectChange::LoadBalancers { .. });
                        self.generations += usize::from(is_new);
                        self.catalog.apply(change, &mut dirty);
                    }
                }
                Event::FileProblems(problems) => {
                    self.strays = problems.iter().map(ToString::to_string).collect();
                }
                Event::Synced => self.synced += 1,
                Event::Read(_) | Event::Director(_) | Event::Hooks(_) => {}
            }
        }
    }

    /// Stores a value without telling.
    pub(super) fn store(&mut self, key: &str, value: &str) -> Pair {
        self.revision += 1;
        let created = self.keys.get(key).map_or(self.revision, |found| found.0);
        self.keys
            .insert(key.to_owned(), (created, value.to_owned()));
        pair(key, created, self.revision, value)
    }

    pub(super) async fn list(&mut self) {
        let pairs = self.keys.iter();
        let pairs = pairs.map(|(key, (created, value))| pair(key, *created, *created, value));
        let listing = Listing {
            revision: self.revision,
            pairs: pairs.collect(),
        };
        self.feed.listed(listing).await.unwrap();
        self.apply();
    }

    pub(super) async fn put(&mut self, key: &str, value: &str) {
        let pair = self.store(key, value);
        self.tell(vec![Change::Put(pair)]).await;
    }

    pub(super) async fn delete(&mut self, keys: &[&str]) {
        self.revision += 1;
        let mut changes = Vec::new();
        for key in keys {
            self.keys.remove(*key).unwrap();
            changes.push(Change::Delete(full(key).into_bytes()));
        }
        self.tell(changes).await;
    }

    pub(super) async fn tell(&mut self, changes: Vec<Change>) {
        let revision = self.revision;
        let news = News { changes, revision };
        self.feed.changed(news).await.unwrap();
        self.apply();
    }

    /// Lets the guard's next decision come.
    pub(super) async fn wait(&mut self) {
        self.feed.wait().await;
        self.feed.look().await.unwrap();
        self.apply();
    }

    /// The load balancers in force with the weight of the first backend.
    pub(super) fn in_force(&self) -> String {
        let mut text = String::new();
        for record in self.catalog.load_balancers().values() {
            let weight = record.destinations[0].weight;
            let _ = write!(text, "{}={weight} ", record.key.service);
        }
        text.trim_end().to_owned()
    }

    pub(super) fn problems(&self) -> Vec<String> {
        let problems = self.catalog.problems().iter();
        problems
            .flat_map(|(object, found)| found.iter().map(move |one| format!("{object}: {one}")))
            .collect()
    }
}
