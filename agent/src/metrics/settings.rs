// SPDX-License-Identifier: Apache-2.0

//! Metric of kernel settings, which others may change while the agent runs.

use portolan_dataplane::Setting;
use portolan_runtime::Scrape;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

/// Compares kernel settings when metrics are scraped.
#[derive(Debug)]
pub struct SettingsCollector(pub Vec<Setting>);

/// The setting of a metric.
#[derive(Debug, EncodeLabelSet)]
struct SettingLabel {
    setting: &'static str,
}

impl Collector for SettingsCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let wrong = self.0.iter().map(|setting| {
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
    use portolan_dataplane::{Tuning, settings};
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

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
        registry.register_collector(Box::new(SettingsCollector(all)));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in expected {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }
}
