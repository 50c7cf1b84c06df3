// SPDX-License-Identifier: Apache-2.0

//! `portolanctl explain`.

use portolan_select::{Explained, Explanation};

use crate::columns::columns;

/// Shows the endpoints with their reasons, and the notes.
pub(crate) fn show(explanation: &Explanation) -> String {
    let zone = explanation.zone.as_deref().unwrap_or("none");
    let mut text = format!(
        "{} ({:?}, policy {:?}) on node {}, zone {zone}\n",
        explanation.record, explanation.kind, explanation.lists, explanation.node
    );
    let titles = ["USED", "ENDPOINT", "WEIGHT", "NODE", "ZONE", "REASON"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    rows.extend(explanation.endpoints.iter().map(row));
    text.push_str(&columns(&rows));
    for note in &explanation.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

fn row(explained: &Explained) -> Vec<String> {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    vec![
        if explained.used { "yes" } else { "no" }.to_owned(),
        explained.address.to_string(),
        explained.weight.to_string(),
        or_dash(&explained.node),
        or_dash(&explained.zone),
        explained.reason.clone(),
    ]
}
