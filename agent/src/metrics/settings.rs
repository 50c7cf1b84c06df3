// SPDX-License-Identifier: Apache-2.0

//! Metric of kernel settings, which others may change while the agent runs.

use portolan_dataplane::{CONNTRACK, Setting};
use portolan_runtime::Scrape;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

use crate::status::Status;

/// Compares kernel settings when metrics are scraped.
#[derive(Debug)]
pub struct SettingsCollector {
    at_start: Vec<Setting>,
    status: Status,
}

impl SettingsCollector {
    /// A collector of settings that are written at the start. The one of conntrack joins them while the desired state
    /// needs it: a director without Services writes it then.
    #[must_use]
    pub fn new(at_start: Vec<Setting>, status: Status) -> Self {
        Self { at_start, status }
    }

    /// The settings that must be right now.
    fn needed(&self) -> impl Iterator<Item = &Setting> {
        let is_more = !self.at_start.contains(&CONNTRACK) && self.status.needs_conntrack();
        let more = is_more.then_some(&CONNTRACK);
        self.at_start.iter().chain(more)
    }
}

/// The setting of a metric.
#[derive(Debug, EncodeLabelSet)]
struct SettingLabel {
    setting: &'static str,
}

impl Collector for SettingsCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let wrong = self.needed().map(|setting| {
            let label = SettingLabel {
                setting: setting.name(),
            };
            (label, i64::from(setting.compare().is_err()))
        });
        Scrape::new(encoder).gauges(
            "setting_wrong",
            "Whether a kernel setting is not as the flags ask for; it is written at start only",
            wrong,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_dataplane::{FakeKernel, Tuning, settings, settings_at_start};
    use portolan_model::ipvs::{ForwardingMethod, Thresholds};
    use portolan_model::{
        AdministrativeState, Balancing, Destination, Frontend, FrontendAddress, FrontendKind,
        NodeTable, Profile, Protocol, Record, RecordKey,
    };
    use portolan_plan::{Config, RulesMode};
    use portolan_reconcile::Reconciler;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::subscribe::Subscribed;

    /// A load balancer with one server of a method, which needs no rules.
    fn balancer(forwarding: ForwardingMethod) -> Record {
        let vip = FrontendAddress::Vip([192, 0, 2, 10].into());
        let profile = Profile {
            forwarding,
            thresholds: Thresholds::default(),
            checks: Vec::new(),
            administrative_state: AdministrativeState::Enabled,
        };
        let key = RecordKey {
            cluster: "".into(),
            namespace: "default".into(),
            service: "web".into(),
            port: "".into(),
            protocol: Protocol::Tcp,
        };
        Record {
            frontends: vec![Frontend::new(FrontendKind::Balanced, vip, 80)],
            destinations: vec![Destination::new(([10, 0, 0, 11], 80).into())],
            balancing: Some(Arc::new(Balancing {
                profiles: vec![profile],
                profile_of: vec![0],
                ..Balancing::default()
            })),
            ..Record::new(key)
        }
    }

    /// A director without Services that has programmed some load balancers.
    async fn programmed(records: &[Record]) -> Status {
        let records = records.iter().cloned();
        let records = records.map(|record| (record.key.clone(), Arc::new(record)));
        let table = Arc::new(NodeTable {
            records: records.collect(),
            ..NodeTable::default()
        });
        let config = Config {
            rules_mode: RulesMode::OnDemand,
            ..Config::default()
        };
        let mut reconciler = Reconciler::new(FakeKernel::default(), config);
        let outcome = reconciler.reconcile(&table).await.unwrap();
        let status = Status::default();
        let target = Subscribed::new((0, 7), table);
        status.update(&target, Some(reconciler.desired().clone()), &outcome);
        status
    }

    #[tokio::test]
    async fn conntrack_of_a_director_is_compared_while_a_server_needs_it() {
        let tuning = Tuning::default();
        for (records, is_needed) in [
            (vec![], false),
            (vec![balancer(ForwardingMethod::Direct)], false),
            (vec![balancer(ForwardingMethod::Masquerade)], true),
        ] {
            let at_start = settings_at_start(&tuning, RulesMode::OnDemand);
            let collector = SettingsCollector::new(at_start, programmed(&records).await);
            let found = collector
                .needed()
                .filter(|each| **each == CONNTRACK)
                .count();
            assert_eq!(found, usize::from(is_needed), "{records:?}");
        }
        // An agent that writes it at its start compares it once.
        let status = programmed(&[balancer(ForwardingMethod::Masquerade)]).await;
        let collector = SettingsCollector::new(settings(&tuning), status);
        let found = collector
            .needed()
            .filter(|each| **each == CONNTRACK)
            .count();
        assert_eq!(found, 1);
    }

    #[test]
    fn each_setting_is_compared_at_a_scrape() {
        let mut registry = Registry::with_prefix("portolan_agent");
        let all = settings(&Tuning::default());
        let expected: Vec<String> = all
            .iter()
            .map(|setting| {
                let (name, wrong) = (setting.name(), i32::from(setting.compare().is_err()));
                format!("portolan_agent_setting_wrong{{setting=\"{name}\"}} {wrong}")
            })
            .collect();
        let collector = SettingsCollector::new(all, Status::default());
        registry.register_collector(Box::new(collector));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in expected {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }
}
