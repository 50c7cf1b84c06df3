// SPDX-License-Identifier: Apache-2.0

//! Effect of a transaction on a table.

use std::sync::Arc;

use portolan_netlink::nftables::{Elements, Request, TableContent};

/// Applies the requests of a transaction that the kernel made. What a request about a missing object says
/// has no effect: the content was wrong then, and the next reading corrects it.
pub fn advance(content: &mut Option<TableContent>, requests: &[Request]) {
    for request in requests {
        match request {
            Request::AddTable => drop(content.get_or_insert_default()),
            Request::DelTable => *content = None,
            _ => {
                if let Some(content) = content {
                    change(content, request);
                }
            }
        }
    }
}

fn change(content: &mut TableContent, request: &Request) {
    let sets = &mut content.sets;
    let chains = &mut content.chains;
    match request {
        Request::AddTable | Request::DelTable => {}
        Request::AddSet(set) => {
            let name = Arc::clone(&set.name);
            let new = || (set.clone(), Elements::new());
            sets.entry(name).or_insert_with(new);
        }
        Request::ResizeSet(set) => {
            if let Some((there, _)) = sets.get_mut(&set.name) {
                there.size = set.size;
            }
        }
        Request::DelSet(name) => drop(sets.remove(name)),
        Request::AddChain(chain) => {
            let name = Arc::clone(&chain.name);
            chains
                .entry(name)
                .or_insert_with(|| (chain.clone(), Vec::new()));
        }
        Request::DelChain(name) => drop(chains.remove(name)),
        Request::AddRule(name, rule) => {
            if let Some((_, rules)) = chains.get_mut(name) {
                rules.push(rule.clone());
            }
        }
        Request::FlushChain(name) => {
            if let Some((_, rules)) = chains.get_mut(name) {
                rules.clear();
            }
        }
        Request::AddElements(name, elements) => {
            if let Some((_, there)) = sets.get_mut(name) {
                there.extend(elements.iter().cloned());
            }
        }
        Request::DelElements(name, elements) => {
            if let Some((_, there)) = sets.get_mut(name) {
                for (key, _) in elements {
                    there.remove(key);
                }
            }
        }
    }
}
