// SPDX-License-Identifier: Apache-2.0

//! All objects of all kinds, past a deletion guard for each kind.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Instant;

use portolan_catalog::{Kind, ObjectKey};
use tokio::sync::{mpsc, watch};

use super::{News, ResourceKind, Resources};
use crate::deletions::{DeletionGuard, Facts, GuardConfig, HeldLoss, Size, Verdict};
use crate::{HeldDeletions, HoldReport};

/// The objects, and the guards of their deletions.
#[derive(Debug)]
pub(super) struct Gatherer {
    /// By kind; the event is the name of an object that goes.
    guards: BTreeMap<&'static str, DeletionGuard<String>>,
    report: HoldReport,
    known: Resources,
    told: watch::Sender<Resources>,
}

impl Gatherer {
    pub(super) fn new(
        kinds: &[ResourceKind],
        config: GuardConfig,
        holds: Arc<HeldDeletions>,
        told: watch::Sender<Resources>,
    ) -> Self {
        let config = GuardConfig {
            // An empty listing is more likely another server, or resources that were defined anew.
            doubts_emptiness: true,
            // Who deletes an object means it.
            watch_percent: 100,
            ..config
        };
        let guards = kinds
            .iter()
            .map(|kind| (kind.kind, DeletionGuard::new(config)));
        Self {
            guards: guards.collect(),
            report: HoldReport::new((Arc::default(), Kind::Policy), holds),
            known: Resources::default(),
            told,
        }
    }

    /// Takes news until nobody sends any, or nobody wants to know.
    pub(super) async fn run(mut self, mut news: mpsc::Receiver<(&'static str, News)>) {
        loop {
            let due = async {
                match self.due() {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => pending().await,
                }
            };
            let first = tokio::select! {
                news = news.recv() => match news {
                    Some(news) => Some(news),
                    None => return,
                },
                () = due => None,
                () = self.report.confirmed() => None,
                () = self.told.closed() => return,
            };
            if let Some((kind, first)) = first {
                self.take(kind, first);
            }
            while let Ok((kind, more)) = news.try_recv() {
                self.take(kind, more);
            }
            self.look();
            self.tell();
        }
    }

    fn take(&mut self, kind: &'static str, news: News) {
        let Some(guard) = self.guards.get_mut(kind) else {
            return;
        };
        let (now, facts) = (now(), Some(Facts::default()));
        match news {
            News::Listed(objects) => {
                for name in guard.settle(now) {
                    self.known.objects.remove(&(kind, name));
                }
                guard.begin(now);
                for name in objects.keys() {
                    guard.listed(key(name), facts.clone(), name.clone(), now);
                }
                // It was read from the server's storage, so that another one would say the same.
                let verdict = guard.complete(true, |key| key.name.to_string(), now);
                let kept = match verdict {
                    Verdict::Settled { kept, .. } => kept,
                    Verdict::Doubted { .. } => return,
                };
                let is_kept = |name: &str| kept.iter().any(|kept| &*kept.name == name);
                let stays = |name: &String| objects.contains_key(name) || is_kept(name);
                self.known
                    .objects
                    .retain(|(of, name), _| *of != kind || stays(name));
                let objects = objects.into_iter();
                let objects = objects.map(|(name, object)| ((kind, name), object));
                self.known.objects.extend(objects);
                self.known.listed.insert(kind);
                self.known.problems.remove(kind);
            }
            News::Put(name, object) => {
                guard.put(key(&name), facts, name.clone(), now);
                self.known.objects.insert((kind, name), object);
            }
            News::Deleted(name) => {
                if let Some(name) = guard.delete(key(&name), name, now) {
                    self.known.objects.remove(&(kind, name));
                }
            }
            News::Failed(text) => _ = self.known.problems.insert(kind, text),
        }
    }

    /// Lets deletions go whose time has come, or that an operator has confirmed.
    fn look(&mut self) {
        let is_confirmed = self.report.take_confirmation();
        let now = now();
        for (kind, guard) in &mut self.guards {
            let mut gone = guard.look(now);
            if is_confirmed {
                gone.extend(guard.confirm(now));
            }
            for name in gone {
                self.known.objects.remove(&(*kind, name));
            }
        }
        self.report.report(self.held());
    }

    fn tell(&self) {
        self.told.send_if_modified(|told| {
            let is_new = *told != self.known;
            if is_new {
                told.clone_from(&self.known);
            }
            is_new
        });
    }

    fn due(&self) -> Option<Instant> {
        let now = now();
        let due = self.guards.values().filter_map(|guard| guard.due(now));
        due.min()
    }

    /// The deletions that are held, of all kinds together.
    fn held(&self) -> Option<HeldLoss> {
        let held = self.guards.values().filter_map(DeletionGuard::held);
        held.reduce(|one, other| HeldLoss {
            lost: sum(one.lost, other.lost),
            of: sum(one.of, other.of),
            until: one.until.min(other.until),
        })
    }
}

fn sum(one: Size, other: Size) -> Size {
    Size {
        objects: one.objects + other.objects,
        ready: one.ready + other.ready,
    }
}

/// The name as the guard has it: objects of one kind differ by name.
fn key(name: &str) -> ObjectKey {
    ObjectKey {
        cluster: Arc::default(),
        namespace: Arc::default(),
        name: name.into(),
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
