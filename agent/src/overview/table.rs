// SPDX-License-Identifier: Apache-2.0

//! Overviews as tables for people.

use super::{Backend, Balancer, Command, Overview, Usage, VirtualServer};

/// Headings of the table of load balancers. The first five columns are text, the others numbers.
pub(super) const HEADINGS: [&str; 11] = [
    "NAME", "FRONTEND", "METHOD", "SCHED", "UP", "WEIGHT", "ACTIVE", "INACT", "CONN/s", "IN/s",
    "OUT/s",
];

/// Headings of the table of backends. The first five columns are text, and the last one; the others are numbers.
pub(super) const BACKEND_HEADINGS: [&str; 12] = [
    "BACKEND", "METHOD", "STATE", "FOR", "ADMIN", "WEIGHT", "ACTIVE", "INACT", "CONN/s", "IN/s",
    "OUT/s", "REASON",
];

/// Commands of operators that are listed below the table, at most.
const MAX_COMMANDS: usize = 16;

/// A line for each virtual server.
pub(super) fn balancers(overview: &Overview) -> String {
    let mut rows = vec![HEADINGS.map(ToOwned::to_owned).to_vec()];
    for balancer in &overview.balancers {
        let virtual_servers = balancer.virtual_servers.iter();
        rows.extend(virtual_servers.map(|server| row(balancer, server).to_vec()));
    }
    let mut text = aligned(&rows);
    text.push_str(&notes(overview));
    text
}

/// The cells of a virtual server's line, in the order of [`HEADINGS`].
pub(super) fn row(balancer: &Balancer, server: &VirtualServer) -> [String; 11] {
    let [active, inactive, connections, bytes_in, bytes_out] = numbers(server.usage.as_ref());
    let sorry = match balancer.sorry_server_active {
        Some(true) => " sorry",
        _ => "",
    };
    [
        balancer.name.clone(),
        format!("{} {}", balancer.protocol, server.address),
        server.method.clone(),
        balancer.scheduler.clone(),
        format!("{}/{}{sorry}", server.up, server.backends),
        whole(server.weight),
        active,
        inactive,
        connections,
        bytes_in,
        bytes_out,
    ]
}

/// A line for each backend of each load balancer.
pub(super) fn backends(overview: &Overview) -> String {
    let mut text = String::new();
    for balancer in &overview.balancers {
        let mut rows = vec![BACKEND_HEADINGS.map(ToOwned::to_owned).to_vec()];
        rows.extend(
            balancer
                .backends
                .iter()
                .map(|each| backend_row(each).to_vec()),
        );
        let heading = format!(
            "\n{}:{}/{}\n",
            balancer.name, balancer.frontend, balancer.protocol
        );
        text.push_str(&heading);
        text.push_str(&aligned(&rows));
    }
    text
}

/// The cells of a backend's line, in the order of [`BACKEND_HEADINGS`].
pub(super) fn backend_row(backend: &Backend) -> [String; 12] {
    let [active, inactive, connections, bytes_in, bytes_out] = numbers(backend.usage.as_ref());
    let configured = backend.configured_weight;
    let weight = match backend.weight {
        Some(weight) if weight == configured => weight.to_string(),
        weight => format!("{} of {configured}", whole(weight.map(u64::from))),
    };
    let kept = if backend.kept { " (kept)" } else { "" };
    [
        backend.address.clone(),
        backend.method.clone(),
        format!("{}{kept}", backend.state),
        backend.since_seconds.map(span).unwrap_or_else(dash),
        match backend.by_command {
            true => format!("{} (command)", backend.administrative),
            false => backend.administrative.clone(),
        },
        weight,
        active,
        inactive,
        connections,
        bytes_in,
        bytes_out,
        backend.reason.as_deref().map_or_else(dash, plain),
    ]
}

/// Returns the notes: facts that the table does not show.
pub(super) fn notes(overview: &Overview) -> String {
    let mut notes = String::new();
    if let Some(unread) = &overview.unread {
        notes.push_str(&format!("# no numbers of connections: {}\n", plain(unread)));
    }
    if overview.omitted > 0 {
        let omitted = overview.omitted;
        notes.push_str(&format!("# {omitted} more: `portolan-agent status NAME`\n"));
    }
    for command in overview.commands.iter().take(MAX_COMMANDS) {
        let Command { backend, state, .. } = command;
        let until = command.until.as_deref();
        let until = until.map(|until| format!(" until {until}"));
        let missing = if command.is_used {
            ""
        } else {
            "; there is no such backend"
        };
        let until = until.unwrap_or_default();
        notes.push_str(&format!(
            "# {backend}: {state} by command{until}{missing}\n"
        ));
    }
    let more = overview.commands.len().saturating_sub(MAX_COMMANDS);
    if more > 0 {
        notes.push_str(&format!(
            "# {more} more commands: `portolan-agent status --output json`\n"
        ));
    }
    for fault in overview.faults() {
        notes.push_str(&format!("# {}\n", plain(&fault)));
    }
    notes
}

fn numbers(usage: Option<&Usage>) -> [String; 5] {
    let rates = usage.and_then(|usage| usage.rates);
    let rate = |value: Option<f64>| value.map_or_else(dash, scaled);
    [
        whole(usage.map(|usage| usage.active)),
        whole(usage.map(|usage| usage.inactive)),
        rate(rates.map(|rates| rates.connections)),
        rate(rates.map(|rates| rates.bytes_in)),
        rate(rates.map(|rates| rates.bytes_out)),
    ]
}

fn whole(value: Option<u64>) -> String {
    value.map_or_else(dash, |value| value.to_string())
}

fn dash() -> String {
    "-".to_owned()
}

/// `0`, `9.5`, `310`, `2.1M`: two digits or three, and a unit of thousands.
fn scaled(value: f64) -> String {
    let mut value = value;
    let mut unit = "";
    for next in ["k", "M", "G", "T"] {
        // What rounds to a thousand is one of the next unit.
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1_000.0, next);
    }
    match value {
        _ if value < 0.05 => format!("0{unit}"),
        _ if value < 9.95 => format!("{value:.1}{unit}"),
        _ => format!("{value:.0}{unit}"),
    }
}

/// `7s`, `3m`, `5h`, `12d`.
fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Text from elsewhere without characters that a terminal obeys.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .map(|each| if each.is_control() { ' ' } else { each })
        .collect()
}

/// Columns that are as wide as their widest cell.
fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let line: String = cells
            .map(|(cell, width)| format!("{cell:<width$}  "))
            .collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, expected) in [
            (0.0, "0"),
            (0.04, "0"),
            (0.2, "0.2"),
            (9.96, "10"),
            (310.4, "310"),
            (999.6, "1.0k"),
            (2_100_000.0, "2.1M"),
            (48e6, "48M"),
            (7e15, "7000T"),
        ] {
            assert_eq!(scaled(value), expected, "{value}");
        }
        let spans = [59, 60, 3_599, 86_399, 86_400].map(span);
        assert_eq!(spans, ["59s", "1m", "59m", "23h", "1d"]);
    }

    #[test]
    fn what_a_backend_says_cannot_command_a_terminal() {
        assert_eq!(plain("a\x1b[2Jb\nc"), "a [2Jb c");
    }
}
