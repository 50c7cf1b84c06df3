//! Metrics of certificates and keys in files.

use std::sync::Arc;

use portolan_tls::Health;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Reads how sets of files do when metrics are scraped; each with its name.
#[derive(Debug)]
pub struct CredentialCollector(pub Vec<(&'static str, Arc<Health>)>);

impl Collector for CredentialCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, help, read) in [
            (
                "credential_reloads",
                "How often newer files were taken, by what they are for",
                Health::reloads as fn(&Health) -> u64,
            ),
            (
                "credential_failures",
                "How often newer files could not be used, by what they are for",
                Health::failures,
            ),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (what, health) in &self.0 {
                let counter = ConstCounter::new(read(health));
                counter.encode(family.encode_family(&[("what", *what)])?)?;
            }
        }
        for (name, help, read) in [
            (
                "credentials_broken",
                "Whether files cannot be used, so that older ones are in force",
                (|health| u64::from(health.is_broken())) as fn(&Health) -> u64,
            ),
            (
                "credential_expiry_timestamp_seconds",
                "When what is in force expires, in seconds since 1970; 0 if it does not",
                Health::expires,
            ),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (what, health) in &self.0 {
                let gauge = ConstGauge::new(i64::try_from(read(health)).unwrap_or(i64::MAX));
                gauge.encode(family.encode_family(&[("what", *what)])?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn each_set_of_files_is_shown() {
        let mut registry = Registry::with_prefix("portolan_agent");
        let files = vec![("tls", Arc::default()), ("token_keys", Arc::default())];
        registry.register_collector(Box::new(CredentialCollector(files)));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for expected in [
            "portolan_agent_credential_reloads_total{what=\"tls\"} 0",
            "portolan_agent_credentials_broken{what=\"token_keys\"} 0",
            "portolan_agent_credential_expiry_timestamp_seconds{what=\"tls\"} 0",
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }
}
