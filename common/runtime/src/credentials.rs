// SPDX-License-Identifier: Apache-2.0

//! Metrics of certificates and keys in files.

use std::sync::Arc;

use portolan_tls::Health;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

use crate::{Scrape, gauge_value};

/// Collects the health of named sets of files when metrics are scraped.
#[derive(Debug)]
pub struct CredentialCollector(pub Vec<(&'static str, Arc<Health>)>);

/// The purpose of a set of files.
#[derive(Debug, EncodeLabelSet)]
struct PurposeLabel {
    what: &'static str,
}

impl Collector for CredentialCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut scrape = Scrape::new(encoder);
        let files = || {
            let files = self.0.iter();
            files.map(|(what, health)| (PurposeLabel { what }, health))
        };
        scrape.counters(
            "credential_reloads",
            "Reloads of changed files, by purpose",
            files().map(|(label, health)| (label, health.reloads())),
        )?;
        scrape.counters(
            "credential_failures",
            "Changed files that could not be used, by purpose",
            files().map(|(label, health)| (label, health.failures())),
        )?;
        scrape.gauges(
            "credentials_broken",
            "Whether the current files cannot be used, so that older ones are in force",
            files().map(|(label, health)| (label, i64::from(health.is_broken()))),
        )?;
        scrape.gauges(
            "credential_expiry_timestamp_seconds",
            "Expiry of the credentials in force, in seconds of Unix time; 0 if they do not expire",
            files().map(|(label, health)| (label, gauge_value(health.expires()))),
        )
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn each_set_of_files_has_metrics() {
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
