// SPDX-License-Identifier: Apache-2.0

//! A trace as text.

use std::collections::BTreeMap;

use portolan_model::trace::{Outcome, Server, Trace};

use crate::columns::columns;

/// Shows a trace; `is_wide` with all that is looked up and absent on both sides.
pub(super) fn text(trace: &Trace, is_wide: bool) -> String {
    let packet = &trace.packet;
    let mut text = format!(
        "{} from {} ({}) to {} on node {}, revision {}, {}\n",
        packet.protocol,
        packet.source,
        packet.origin,
        packet.destination,
        trace.node,
        trace.revision,
        trace.dataplane
    );
    let record = trace.record.as_deref();
    text.push_str(&format!(
        "{}\n\n",
        record.unwrap_or("no Service has the destination")
    ));
    text.push_str(&steps(trace, is_wide));
    text.push_str(&format!("\n{}\n", end(&trace.wanted.outcome)));
    if trace.differences.is_empty() {
        text.push_str("\nthe kernel has what the table asks for\n");
    } else {
        text.push_str(&format!("\nthe kernel: {}\n\n", end(&trace.found.outcome)));
        let mut rows = vec![
            ["DIFFERENCE", "TABLE", "KERNEL"]
                .map(str::to_owned)
                .to_vec(),
        ];
        let differences = trace.differences.iter();
        rows.extend(differences.map(|d| vec![d.place.clone(), d.wanted.clone(), d.found.clone()]));
        text.push_str(&columns(&rows));
    }
    for note in &trace.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

fn steps(trace: &Trace, is_wide: bool) -> String {
    let found: BTreeMap<_, _> = trace
        .found
        .steps
        .iter()
        .map(|s| (&s.place, &s.found))
        .collect();
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let mut rows = vec![
        ["LOOK-UP", "TABLE", "KERNEL", "MEANING"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for step in &trace.wanted.steps {
        let kernel = found.get(&step.place);
        if step.found.is_none() && kernel.is_none_or(|found| found.is_none()) && !is_wide {
            continue;
        }
        let kernel = kernel.map_or_else(|| "not reached".to_owned(), |found| or_dash(found));
        let why = match step.found {
            Some(_) => step.why.clone(),
            None => String::new(),
        };
        rows.push(vec![step.place.clone(), or_dash(&step.found), kernel, why]);
    }
    columns(&rows)
}

fn end(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Forwarded { by, servers } => {
            let titles = ["REAL SERVER", "WEIGHT", "SOURCE", "BY", "REASON"];
            let mut rows = vec![titles.map(str::to_owned).to_vec()];
            rows.extend(servers.iter().map(row));
            format!("forwarded by {by}\n{}", columns(&rows).trim_end())
        }
        Outcome::Dropped { by } => format!("dropped by {by}"),
        Outcome::Refused { by } => format!("refused by {by}"),
        Outcome::Passes { .. } => outcome.to_string(),
    }
}

fn row(server: &Server) -> Vec<String> {
    let source = match server.masquerade {
        true => "masqueraded",
        false => "as it is",
    };
    vec![
        server.address.to_string(),
        server.weight.to_string(),
        source.to_owned(),
        server.source_by.clone(),
        server.why.clone(),
    ]
}
