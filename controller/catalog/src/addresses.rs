//! Which Nodes have an address, and which Services want it: a Service whose address is a Node's own
//! is projected again when that Node's addresses change, and no other Service is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::{Node, ObjectKey, Service};

/// All addresses of one cluster.
#[derive(Debug, Default)]
struct Cluster {
    nodes: HashMap<IpAddr, BTreeSet<Arc<str>>>,
    services: HashMap<IpAddr, BTreeSet<ObjectKey>>,
}

/// All addresses of Nodes and Services, by cluster.
#[derive(Debug, Default)]
pub(crate) struct Addresses(BTreeMap<Arc<str>, Cluster>);

impl Addresses {
    /// The first Node, by name, that has the address.
    pub(crate) fn node(&self, cluster: &str, address: IpAddr) -> Option<&Arc<str>> {
        self.0.get(cluster)?.nodes.get(&address)?.first()
    }

    pub(crate) fn insert_service(&mut self, service: &Service) {
        let cluster = self.cluster(&service.key);
        for (_, address) in service.addresses() {
            let services = cluster.services.entry(address).or_default();
            services.insert(service.key.clone());
        }
    }

    pub(crate) fn remove_service(&mut self, service: &Service) {
        let cluster = self.cluster(&service.key);
        for (_, address) in service.addresses() {
            take(&mut cluster.services, address, &service.key);
        }
    }

    /// Puts a Node's new addresses in the place of its old ones. `affected` are the Services that
    /// want one which it gained or lost.
    pub(crate) fn move_node(
        &mut self,
        key: &ObjectKey,
        before: &BTreeSet<IpAddr>,
        after: &BTreeSet<IpAddr>,
        mut affected: impl FnMut(&ObjectKey),
    ) {
        let cluster = self.cluster(key);
        for address in before.difference(after) {
            take(&mut cluster.nodes, *address, &key.name);
        }
        for address in after.difference(before) {
            let nodes = cluster.nodes.entry(*address).or_default();
            nodes.insert(Arc::clone(&key.name));
        }
        for address in before.symmetric_difference(after) {
            let services = cluster.services.get(address).into_iter().flatten();
            services.for_each(&mut affected);
        }
    }

    /// Forgets a Node.
    pub(crate) fn remove_node(&mut self, node: &Node, affected: impl FnMut(&ObjectKey)) {
        self.move_node(&node.key, &node.addresses, &BTreeSet::new(), affected);
    }

    fn cluster(&mut self, key: &ObjectKey) -> &mut Cluster {
        self.0.entry(Arc::clone(&key.cluster)).or_default()
    }
}

fn take<T: Ord>(index: &mut HashMap<IpAddr, BTreeSet<T>>, address: IpAddr, who: &T) {
    if let Some(all) = index.get_mut(&address) {
        all.remove(who);
        if all.is_empty() {
            index.remove(&address);
        }
    }
}
