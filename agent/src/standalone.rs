//! The table from files on this host: the controller's own selection, without a controller.

use std::sync::Arc;
use std::time::Instant;

use portolan_model::{NodeKey, NodeTable};
use portolan_select::{Pipeline, SelectConfig, TableDelta};
use portolan_source::{Event, ProblemLog};
use tokio::sync::{mpsc, watch};

use crate::subscribe::Subscribed;

/// Turns a source's events into this node's table.
#[derive(Debug)]
pub struct Standalone {
    /// Which node this is.
    pub node: NodeKey,
    /// Logs and counts what is wrong with objects.
    pub problems: ProblemLog,
    /// What the flags say of selection.
    pub select: SelectConfig,
    /// Where the table goes.
    pub tables: watch::Sender<Option<Arc<Subscribed>>>,
}

impl Standalone {
    /// Works until the source ends. Says no table before the source has synced.
    pub async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        let mut pipeline = Pipeline::new(self.select);
        let mut table = NodeTable::default();
        let mut revision = 0;
        let mut synced = false;
        while let Some(event) = events.recv().await {
            match event {
                Event::Changes(changes) => changes.into_iter().for_each(|c| pipeline.apply(c)),
                Event::FileProblems(problems) => self.problems.update_files(&problems),
                Event::Synced => synced = true,
            }
            // What has arrived already is one transition.
            if !synced || !events.is_empty() {
                continue;
            }
            let delta = pipeline.flush();
            self.problems.update(&pipeline.problems());
            if revision == 0 || !delta.is_empty() {
                revision += 1;
                apply(&mut table, &self.node, delta);
                self.tables.send_replace(Some(Arc::new(Subscribed {
                    epoch: 0,
                    revision,
                    table: Arc::new(table.clone()),
                    received_at: Instant::now(),
                    trigger_times_ms: vec![],
                    is_from_disk: false,
                })));
            }
        }
    }
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
    use portolan_catalog::{
        Endpoint, EndpointSlice, Object, ObjectChange, ObjectKey, Service, ServicePort, SlicePort,
        TrafficPolicy,
    };
    use portolan_model::{Family, Protocol};

    use super::*;

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

    #[tokio::test]
    async fn the_table_is_this_nodes_and_comes_after_syncing() {
        let (events, receiver) = mpsc::channel(8);
        let (tables, mut table) = watch::channel(None);
        let node = NodeKey {
            cluster: "".into(),
            name: "here".into(),
        };
        let standalone = Standalone {
            node,
            problems: ProblemLog::default(),
            select: SelectConfig::default(),
            tables,
        };
        let task = tokio::spawn(standalone.run(receiver));

        events.send(Event::Changes(objects())).await.unwrap();
        events.send(Event::Synced).await.unwrap();
        let first = table
            .wait_for(Option::is_some)
            .await
            .unwrap()
            .clone()
            .unwrap();
        assert_eq!(first.revision, 1);
        let record = first.table.records.values().next().unwrap();
        let destinations = first.table.destinations(record, &record.frontends[0]);
        let addresses: Vec<_> = destinations.iter().map(|d| d.address.to_string()).collect();
        assert_eq!(addresses, ["10.244.0.1:8080"]);
        drop(events);
        task.await.unwrap();
    }
}
