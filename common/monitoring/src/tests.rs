// SPDX-License-Identifier: Apache-2.0

//! The files of the chart are those of the code, and use metrics that exist.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::alerts::{RULES, RUNBOOKS, Rules, UNIT_TESTS, tested};
use crate::check::check;
use crate::metrics::Metrics;
use crate::{boards, repository};

/// Directory of the dashboards' files.
const DASHBOARDS: &str = "charts/portolan/files/dashboards";

fn read(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn rules() -> Rules {
    Rules::parse(&read(RULES)).unwrap_or_else(|error| panic!("{RULES}: {error}"))
}

/// Everything that was found must be empty.
fn none(found: &[String]) {
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_dashboards_are_made_from_the_reference() {
    let boards = boards::all(&Metrics::read().unwrap());
    let names: BTreeSet<_> = boards
        .iter()
        .map(|it| format!("{}.json", it.name))
        .collect();
    for board in &boards {
        let path = format!("{DASHBOARDS}/{}.json", board.name);
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            fs::write(repository(&path), board.text()).unwrap();
        }
        assert!(
            read(&path) == board.text(),
            "{path} is stale: run `make reference`"
        );
    }
    let found = fs::read_dir(repository(DASHBOARDS)).unwrap();
    let found = found.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(found.collect::<BTreeSet<_>>(), names);
}

/// The queries of a dashboard: those of its panels, and the series of its variables.
fn queries(board: &Value) -> Vec<String> {
    let panels = board["panels"].as_array().into_iter().flatten();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let mut all: Vec<_> = targets
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .collect();
    let variables = board["templating"]["list"].as_array().into_iter().flatten();
    for definition in variables.filter_map(|variable| variable["definition"].as_str()) {
        let inner = definition.strip_prefix("label_values(").unwrap();
        let (series, label) = inner.trim_end_matches(')').split_once(", ").unwrap();
        all.push(format!("count by ({label}) ({series})"));
    }
    all
}

#[test]
fn queries_of_dashboards_fit_the_metrics() {
    let metrics = Metrics::read().unwrap();
    let (mut faults, mut used) = (Vec::new(), BTreeSet::new());
    for entry in fs::read_dir(repository(DASHBOARDS)).unwrap() {
        let path = entry.unwrap().path();
        let board: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        for query in queries(&board) {
            match check(&query, &metrics) {
                Ok(names) => used.extend(names),
                Err(fault) => faults.push(format!("{}: {query}: {fault}", path.display())),
            }
        }
    }
    none(&faults);
    assert!(
        used.len() > 60,
        "{} series: the search for queries is broken",
        used.len()
    );
}

#[test]
fn panels_do_not_overlap_and_have_numbers_of_their_own() {
    for board in boards::all(&Metrics::read().unwrap()) {
        let value: Value = serde_json::from_str(&board.text()).unwrap();
        let (mut taken, mut ids) = (BTreeSet::new(), BTreeSet::new());
        for panel in value["panels"].as_array().unwrap() {
            let at = |side: &str| panel["gridPos"][side].as_u64().unwrap();
            assert!(at("x") + at("w") <= 24, "{panel}");
            let cells = (at("y")..at("y") + at("h"))
                .flat_map(|y| (at("x")..at("x") + at("w")).map(move |x| (x, y)));
            for cell in cells {
                assert!(taken.insert(cell), "{}: {panel} overlaps", board.name);
            }
            assert!(ids.insert(panel["id"].as_u64()), "{panel}");
        }
    }
}

#[test]
fn alerts_fit_the_metrics_and_lead_to_their_runbooks() {
    let (metrics, rules) = (Metrics::read().unwrap(), rules());
    let mut faults: Vec<String> = Vec::new();
    let mut names = BTreeSet::new();
    for alert in rules.alerts() {
        faults.extend(alert.faults());
        if let Err(fault) = check(&alert.expr, &metrics) {
            faults.push(format!("{}: {fault}", alert.alert));
        }
        if !names.insert(alert.alert.clone()) {
            faults.push(format!("{}: twice", alert.alert));
        }
    }
    none(&faults);
    assert!(names.len() > 15, "{names:?}");
    let page = read(RUNBOOKS);
    let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
    let headings: BTreeSet<_> = headings.map(str::to_owned).collect();
    assert_eq!(headings, names, "headings of {RUNBOOKS} and alerts");
}

#[test]
fn each_alert_is_tested_in_both_ways() {
    let names: BTreeSet<_> = rules().alerts().map(|it| it.alert.clone()).collect();
    let [firing, silent] = tested(&read(UNIT_TESTS)).unwrap();
    assert_eq!(firing, names, "alerts that a unit test expects to fire");
    assert_eq!(silent, names, "alerts that a unit test expects not to fire");
}
