// SPDX-License-Identifier: Apache-2.0

//! Dashboards in Grafana's form.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::panel::Panel;

/// Columns of Grafana's grid.
const COLUMNS: u32 = 24;

/// A variable that the reader of a dashboard chooses: values of a label of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    /// Its name, and the label.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The series.
    pub series: &'static str,
}

/// A dashboard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dashboard {
    /// Name of its file, and end of its identifier.
    pub name: &'static str,
    /// Its title.
    pub title: &'static str,
    /// Its variables, beside the source of data.
    pub variables: Vec<Variable>,
    /// Sections: a title, and panels from left to right.
    pub sections: Vec<(&'static str, Vec<Panel>)>,
}

impl Dashboard {
    /// The file's text: a line for each panel, so that a change of one is a change of a line.
    #[must_use]
    pub fn text(&self) -> String {
        let panels: Vec<String> = self.panels().iter().map(ToString::to_string).collect();
        let mut text = String::from("{\n");
        for (name, value) in self.head() {
            let _ = writeln!(text, " \"{name}\": {value},");
        }
        let _ = write!(text, " \"panels\": [\n  {}\n ]\n}}\n", panels.join(",\n  "));
        text
    }

    fn head(&self) -> Vec<(&'static str, Value)> {
        vec![
            ("title", json!(self.title)),
            ("uid", json!(format!("portolan-{}", self.name))),
            ("tags", json!(["portolan", "kubernetes", "networking"])),
            ("timezone", json!("browser")),
            ("schemaVersion", json!(39)),
            ("version", json!(1)),
            ("refresh", json!("30s")),
            ("time", json!({ "from": "now-6h", "to": "now" })),
            ("editable", json!(true)),
            ("links", json!([links()])),
            ("templating", json!({ "list": self.variables() })),
            ("annotations", json!({ "list": [] })),
        ]
    }

    fn variables(&self) -> Vec<Value> {
        let mut all = vec![json!({
            "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
            "current": {}, "hide": 0,
        })];
        all.extend(self.variables.iter().map(|variable| {
            let query = format!("label_values({}, {})", variable.series, variable.name);
            json!({
                "name": variable.name, "label": variable.title, "type": "query",
                "datasource": { "type": "prometheus", "uid": "${datasource}" },
                "query": { "query": query, "refId": "A" }, "definition": query,
                "refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".*",
                "current": {}, "hide": 0,
            })
        }));
        all
    }

    /// The panels, each section below the one before.
    fn panels(&self) -> Vec<Value> {
        let (mut all, mut y) = (Vec::new(), 0);
        for (title, panels) in &self.sections {
            all.push(json!({
                "id": all.len() + 1, "type": "row", "title": title, "collapsed": false, "panels": [],
                "gridPos": { "x": 0, "y": y, "w": COLUMNS, "h": 1 },
            }));
            y += 1;
            let (mut x, mut tallest) = (0, 0);
            for panel in panels {
                let (width, height) = panel.size();
                if x + width > COLUMNS {
                    (x, y, tallest) = (0, y + tallest, 0);
                }
                all.push(panel.json(all.len() + 1, (x, y)));
                x += width;
                tallest = tallest.max(height);
            }
            y += tallest;
        }
        all
    }
}

/// Links to the other dashboards.
fn links() -> Value {
    json!({
        "title": "Portolan", "type": "dashboards", "tags": ["portolan"], "asDropdown": true,
        "includeVars": false, "keepTime": true,
    })
}
