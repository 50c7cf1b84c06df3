// SPDX-License-Identifier: Apache-2.0

//! Chains of the lists of a Service port, and of their endpoints.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use portolan_model::Destination;

use super::Writer;
use super::service::Port;
use super::shared::MARK_MASQ;

impl Writer<'_> {
    /// Rules of a list: each endpoint has its share of what the rules before it left.
    pub(super) fn list(&mut self, port: &Port<'_>, list: &[Destination], chain: &str) {
        let comment = |this: &Self, address: SocketAddr| {
            this.endpoint_comment(&format!("{} -> {address}", port.name))
        };
        if let Some(affinity) = port.record.affinity {
            let seconds = affinity.timeout_seconds;
            for destination in list {
                let endpoint = port.names.endpoint(destination.address);
                let words = format!(
                    "-m recent --name {endpoint} --rcheck --seconds {seconds} --reap -j {endpoint}"
                );
                let comment = comment(self, destination.address);
                self.nat.rule(chain, &[&comment, &words]);
            }
        }
        let mut left: u64 = list.iter().map(|d| u64::from(d.weight)).sum();
        for destination in list {
            let weight = u64::from(destination.weight);
            let share = match left == weight {
                true => String::new(),
                false => {
                    let probability = probability(weight, left);
                    format!("-m statistic --mode random --probability {probability}")
                }
            };
            left -= weight;
            let comment = comment(self, destination.address);
            let jump = format!("-j {}", port.names.endpoint(destination.address));
            self.nat.rule(chain, &[&comment, &share, &jump]);
        }
    }

    pub(super) fn endpoints(&mut self, port: &Port<'_>) {
        let all = port.cluster.iter().chain(&port.local);
        let all: BTreeMap<_, _> = all.map(|d| (d.address.to_string(), d.address)).collect();
        let comment = self.endpoint_comment(&port.name);
        for address in all.into_values() {
            let chain = port.names.endpoint(address);
            let itself = format!("-s {} -j {MARK_MASQ}", address.ip());
            self.nat.rule(&chain, &[&comment, &itself]);
            let remember = match port.record.affinity {
                Some(_) => format!("-m recent --name {chain} --set"),
                None => String::new(),
            };
            let protocol = port.protocol;
            let translate =
                format!("-m {protocol} -p {protocol} -j DNAT --to-destination {address}");
            self.nat.rule(&chain, &[&comment, &remember, &translate]);
        }
    }
}

/// A share as kube-proxy writes it.
pub(super) fn probability(weight: u64, of: u64) -> String {
    // Sums of 32-bit weights are far below 2^53 where digits are lost.
    #[allow(clippy::cast_precision_loss, reason = "a share of ten digits")]
    let share = weight as f64 / of as f64;
    format!("{share:.10}")
}
