// SPDX-License-Identifier: Apache-2.0

//! Metrics of this host's director, read when they are scraped.

use std::fmt;

use portolan_model::ipvs::SyncRole;
use portolan_runtime::Scrape;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

use super::{Activity, HostDirector};

/// Collects from the director.
#[derive(Debug)]
pub(crate) struct DirectorCollector(pub(crate) HostDirector);

#[derive(Debug, Clone, EncodeLabelSet)]
struct AddressLabel {
    address: String,
}

#[derive(Debug, Clone, EncodeLabelSet)]
struct StateLabel {
    state: String,
}

impl Collector for DirectorCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // A node of a cluster is no director.
        let Ok((activity, _)) = self.0.role() else {
            return Ok(());
        };
        let mut scrape = Scrape::new(encoder);
        scrape.gauge(
            "director_active",
            "Whether this director answers for its virtual addresses: 0 on standby",
            i64::from(activity == Activity::Active),
        )?;
        scrape.gauge(
            "checks_suspended",
            "Whether no checks of backends run: on standby with checksOnStandby false",
            i64::from(*self.0.0.checks.suspended.borrow()),
        )?;
        let state = self.0.0.done.borrow().state.clone().unwrap_or_default();
        let announced = state.announced.iter().map(|(_, address)| {
            let address = address.to_string();
            (AddressLabel { address }, 1)
        });
        scrape.gauges(
            "vip_announced",
            "Virtual addresses with a route in the table that a routing daemon announces",
            announced,
        )?;
        let daemons = SyncRole::ALL.map(|role| {
            let state_label = StateLabel {
                state: role.to_string(),
            };
            (state_label, i64::from(state.daemons.contains_key(&role)))
        });
        scrape.gauges(
            "sync_daemon_running",
            "Whether a sync daemon of the kernel runs, as far as the director asks for any setting",
            daemons,
        )
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use portolan_director::{Director, Role};
    use portolan_plan::host::HostState;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::super::{Done, HostFlags, Programs};
    use super::*;
    use crate::backends::CheckControls;

    /// The collector of a director with one announced address and a master, which checks nothing on standby.
    pub(crate) fn sample(role: Role) -> DirectorCollector {
        let host = HostDirector::new(
            HostFlags::default(),
            Path::new("/proc/portolan-none"),
            Programs::default(),
            CheckControls::default(),
        );
        let mut director = Director::new("lb1");
        director.vips.role = role;
        director.checks_on_standby = false;
        host.follow(Arc::new(director));
        let daemon = portolan_model::ipvs::SyncDaemon {
            interface: "eth1".into(),
            id: 7,
            max_length: 1472,
            group: [224, 0, 0, 81].into(),
            port: 8848,
            ttl: 1,
        };
        let state = HostState {
            announced: [(199, [192, 0, 2, 10].into())].into(),
            daemons: [(SyncRole::Master, daemon)].into(),
            ..HostState::default()
        };
        let (link, _) = host.link();
        link.done.send_replace(Done {
            state: Some(state),
            ..Done::default()
        });
        DirectorCollector(host)
    }

    fn page(collector: DirectorCollector) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(collector));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn the_role_and_what_is_in_force_are_told() {
        let text = page(sample(Role::Always));
        for line in [
            "director_active 1",
            "checks_suspended 0",
            r#"vip_announced{address="192.0.2.10"} 1"#,
            r#"sync_daemon_running{state="master"} 1"#,
            r#"sync_daemon_running{state="backup"} 0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        // Before the first command.
        let text = page(sample(Role::Command));
        for line in ["director_active 0", "checks_suspended 1"] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }

    #[test]
    fn a_node_without_a_director_has_none_of_them() {
        let host = HostDirector::new(
            HostFlags::default(),
            Path::new("/proc/portolan-none"),
            Programs::default(),
            CheckControls::default(),
        );
        assert!(!page(DirectorCollector(host)).contains("director_active"));
    }
}
