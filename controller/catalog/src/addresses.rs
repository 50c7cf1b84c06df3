// SPDX-License-Identifier: Apache-2.0

//! The Nodes of each address.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

/// The addresses of all Nodes of one cluster.
#[derive(Debug, Default)]
pub(crate) struct Addresses(BTreeSet<(IpAddr, Arc<str>)>);

impl Addresses {
    /// The first Node, by name, that has the address.
    pub(crate) fn node(&self, address: IpAddr) -> Option<&Arc<str>> {
        let (of, name) = self.0.range((address, Arc::default())..).next()?;
        (*of == address).then_some(name)
    }

    /// Puts a Node's new addresses in the place of its old ones. `affected` are those that it
    /// gained or lost.
    pub(crate) fn move_node(
        &mut self,
        name: &Arc<str>,
        before: &[IpAddr],
        after: &[IpAddr],
        mut affected: impl FnMut(IpAddr),
    ) {
        for address in before.iter().filter(|address| !after.contains(address)) {
            self.0.remove(&(*address, Arc::clone(name)));
            affected(*address);
        }
        for address in after.iter().filter(|address| !before.contains(address)) {
            self.0.insert((*address, Arc::clone(name)));
            affected(*address);
        }
    }
}
