// SPDX-License-Identifier: Apache-2.0

//! The alerts of the chart, and their unit tests.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// The file of the alerts.
pub const RULES: &str = "charts/portolan/files/rules.yaml";
/// The file of their unit tests, which `promtool test rules` runs.
pub const UNIT_TESTS: &str = "charts/ci/alerts_test.yaml";
/// The page of their runbooks.
pub const RUNBOOKS: &str = "docs/alerts.md";

/// A file of rules.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Groups of alerts.
    pub groups: Vec<Group>,
}

/// Alerts that are evaluated together.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// The alerts.
    pub rules: Vec<Alert>,
}

/// An alert.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alert {
    /// Its name.
    pub alert: String,
    /// The query that has a result while something is wrong.
    pub expr: String,
    /// Time for which it has one before the alert fires.
    #[serde(default)]
    pub r#for: Option<String>,
    /// Labels: the severity.
    pub labels: BTreeMap<String, String>,
    /// Texts for people.
    pub annotations: BTreeMap<String, String>,
}

impl Rules {
    /// Reads a file of rules.
    ///
    /// # Errors
    /// If it is not of that form.
    pub fn parse(text: &str) -> Result<Self, serde_saphyr::Error> {
        serde_saphyr::from_str(text)
    }

    /// All alerts.
    pub fn alerts(&self) -> impl Iterator<Item = &Alert> {
        self.groups.iter().flat_map(|group| &group.rules)
    }
}

impl Alert {
    /// The page and heading of the alert's runbook.
    #[must_use]
    pub fn runbook(&self) -> String {
        format!("{RUNBOOKS}#{}", self.alert.to_lowercase())
    }

    /// All that is wrong with the alert, apart from its query.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let name = &self.alert;
        let mut faults = Vec::new();
        if !name.starts_with("Portolan") {
            faults.push(format!("{name}: the name does not begin with Portolan"));
        }
        let severity = self.labels.get("severity").map(String::as_str);
        if !matches!(severity, Some("critical" | "warning")) || self.labels.len() != 1 {
            faults.push(format!(
                "{name}: labels: expected severity, critical or warning"
            ));
        }
        for text in ["summary", "description"] {
            let text_of = self.annotations.get(text).map(String::as_str);
            if !text_of.is_some_and(|text| text.ends_with('.')) {
                faults.push(format!("{name}: annotations.{text}: expected sentences"));
            }
        }
        let url = self.annotations.get("runbook_url").map(String::as_str);
        if url != Some(&*self.runbook()) {
            let expected = self.runbook();
            faults.push(format!(
                "{name}: annotations.runbook_url: expected {expected}"
            ));
        }
        faults
    }
}

/// The part of a file of unit tests that says which alerts are tested.
#[derive(Debug, Deserialize)]
struct UnitTests {
    tests: Vec<UnitTest>,
}

#[derive(Debug, Deserialize)]
struct UnitTest {
    #[serde(default)]
    alert_rule_test: Vec<Expectation>,
}

#[derive(Debug, Deserialize)]
struct Expectation {
    alertname: String,
    #[serde(default)]
    exp_alerts: Vec<serde_json::Value>,
}

/// The alerts that some unit test expects to fire, and those that some expects not to.
///
/// # Errors
/// If the text is not of promtool's form.
pub fn tested(text: &str) -> Result<[BTreeSet<String>; 2], serde_saphyr::Error> {
    let file: UnitTests = serde_saphyr::from_str(text)?;
    let (mut firing, mut silent) = (BTreeSet::new(), BTreeSet::new());
    for one in file.tests.into_iter().flat_map(|test| test.alert_rule_test) {
        match one.exp_alerts.is_empty() {
            true => silent.insert(one.alertname),
            false => firing.insert(one.alertname),
        };
    }
    Ok([firing, silent])
}
