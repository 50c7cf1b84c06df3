// SPDX-License-Identifier: Apache-2.0

//! `check`: whether programs run well, by their readiness and metrics, and whether addresses answer.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::args::ConnectArgs;
use crate::client::{Client, clients};
use crate::reply::Reply;

/// Metrics that are 0 while a controller runs well, with what they say.
const CONTROLLER: [(&str, &str); 9] = [
    (
        "agents_with_errors",
        "agents whose kernel refused something",
    ),
    ("agents_behind_long", "agents that lag behind"),
    ("agents_with_refusals", "agents that refused a record"),
    ("agents_holding", "agents that hold deletions back"),
    ("source_deletions_held", "deletions held back"),
    (
        "upstream_deletions_held",
        "records that the relay holds back",
    ),
    ("catalog_divergence_total", "repaired differences of tables"),
    ("credentials_broken", "broken credentials"),
    ("file_problems_current", "problems with files"),
];

/// Metrics that are 0 while an agent runs well.
const AGENT: [(&str, &str); 5] = [
    ("errors_current", "errors of the kernel"),
    ("refused_records_current", "refused records"),
    ("deletions_held_current", "deletions held back"),
    ("takeover_pending", "unfinished takeovers"),
    ("credentials_broken", "broken credentials"),
];

/// One check.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    target: String,
    is_good: bool,
    message: String,
}

/// Runs all checks. A program without an answer is a failed check, not an error.
pub(crate) async fn run(
    args: &ConnectArgs,
    agents: &[String],
    addresses: &[String],
) -> anyhow::Result<Reply> {
    let mut programs = Vec::new();
    if args.names_controllers() || (agents.is_empty() && addresses.is_empty()) {
        programs.extend(clients(args, false).await?);
    }
    for agent in agents {
        programs.push(args.client("--agent", agent)?);
    }
    let mut checks = Vec::new();
    for program in &programs {
        checks.extend(check_program(program).await);
    }
    for address in addresses {
        checks.push(connect(address, args.timeout).await);
    }
    Ok(show(&checks))
}

async fn check_program(program: &Client) -> Vec<Check> {
    let check = |is_good, message| Check {
        target: program.name(),
        is_good,
        message,
    };
    let ready = match program.get_text("/readyz").await {
        Ok((200, _)) => check(true, "ready".to_owned()),
        Ok((status, text)) => check(false, format!("not ready ({status}): {text}")),
        Err(error) => return vec![check(false, format!("{error:#}"))],
    };
    let mut checks = vec![ready];
    match program.get_text("/metrics").await {
        Ok((200, text)) => {
            let judged = judge(&Metrics::parse(&text)).into_iter();
            checks.extend(judged.map(|(is_good, message)| check(is_good, message)));
        }
        Ok((status, text)) => checks.push(check(false, format!("no metrics ({status}): {text}"))),
        Err(error) => checks.push(check(false, format!("no metrics: {error:#}"))),
    }
    checks
}

async fn connect(address: &str, patience: Duration) -> Check {
    let (is_good, message) = match timeout(patience, TcpStream::connect(address)).await {
        Ok(Ok(_)) => (true, "accepts connections".to_owned()),
        Ok(Err(error)) => (false, format!("no connection: {error}")),
        Err(_) => (false, format!("no connection in {patience:?}")),
    };
    Check {
        target: address.to_owned(),
        is_good,
        message,
    }
}

/// Sums of the metrics by name.
#[derive(Debug, Default)]
struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Parses the text format. Lines that are none are left out.
    fn parse(text: &str) -> Self {
        let mut sums = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = split(line) else {
                continue;
            };
            let name = series.split('{').next().unwrap_or_default();
            *sums.entry(name.to_owned()).or_insert(0.0) += value;
        }
        Self(sums)
    }

    fn sum(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }
}

/// The series and the value of a line. Values of labels may contain spaces; an exemplar follows a `#`.
fn split(line: &str) -> Option<(&str, f64)> {
    let end = line.rfind('}').map_or(0, |brace| brace + 1);
    let rest = line.get(end..)?;
    let (name, value) = match end {
        0 => line.split_once(' ')?,
        _ => (line.get(..end)?, rest.trim_start()),
    };
    let value = value.split(' ').next()?.parse().ok()?;
    Some((name, value))
}

/// The checks of a program's metrics.
fn judge(metrics: &Metrics) -> Vec<(bool, String)> {
    let is_of = |prefix: &str| metrics.0.keys().any(|name| name.starts_with(prefix));
    let mut checks = Vec::new();
    for (prefix, table) in [
        ("portolan_controller_", &CONTROLLER[..]),
        ("portolan_agent_", &AGENT[..]),
    ] {
        if !is_of(prefix) {
            continue;
        }
        for (name, meaning) in table {
            let name = format!("{prefix}{name}");
            // Parts that are off have no metrics.
            if let Some(sum) = metrics.sum(&name) {
                checks.push((sum == 0.0, format!("{meaning}: {sum} ({name})")));
            }
        }
    }
    if checks.is_empty() {
        checks.push((false, "these are no metrics of Portolan".to_owned()));
    }
    checks
}

fn show(checks: &[Check]) -> Reply {
    let line = |check: &Check| {
        let verdict = if check.is_good { "ok    " } else { "FAILED" };
        format!("{verdict} {}: {}\n", check.target, check.message)
    };
    let value = |check: &Check| json!({"target": check.target, "ok": check.is_good, "message": check.message});
    let text = checks.iter().map(line).collect();
    let values: Vec<Value> = checks.iter().map(value).collect();
    let failed = checks.iter().any(|check| !check.is_good);
    Reply::new(json!({"checks": values}), text).with_code(u8::from(failed))
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::get;
    use tokio::net::TcpListener;

    use super::*;

    const GOOD: &str = "# HELP portolan_controller_agents_connected Agents.\n\
        portolan_controller_agents_connected 3\n\
        portolan_controller_agents_with_errors 0\n\
        portolan_controller_source_deletions_held{kind=\"a b\"} 0\n\
        portolan_controller_source_deletions_held{kind=\"c\"} 0\n";

    async fn serve(metrics: &'static str, ready: StatusCode) -> String {
        let router = Router::new()
            .route("/readyz", get(move || async move { (ready, "source") }))
            .route("/metrics", get(move || async move { metrics }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    async fn check(controller: Option<&str>, agents: &[String], connect: &[String]) -> Reply {
        let args = ConnectArgs {
            controller: controller
                .map(|one| format!("http://{one}"))
                .into_iter()
                .collect(),
            timeout: Duration::from_secs(5),
            ..ConnectArgs::default()
        };
        run(&args, agents, connect).await.unwrap()
    }

    #[tokio::test]
    async fn a_program_that_runs_well_passes() {
        let address = serve(GOOD, StatusCode::OK).await;
        let reply = check(Some(&address), &[], std::slice::from_ref(&address)).await;
        let lines: Vec<_> = reply.text.lines().collect();
        assert_eq!(lines.len(), 4, "{}", reply.text);
        assert!(
            lines.iter().all(|line| line.starts_with("ok ")),
            "{lines:?}"
        );
        assert_eq!(reply.code, 0);
        assert!(lines[3].ends_with("accepts connections"));
        // An address alone needs no controller.
        let reply = check(None, &[], std::slice::from_ref(&address)).await;
        assert_eq!(reply.text.lines().count(), 1);
    }

    #[tokio::test]
    async fn each_failure_is_a_line() {
        let held = "portolan_controller_source_deletions_held{kind=\"a b\"} 2\n\
            portolan_controller_source_deletions_held{kind=\"c\"} 1\n";
        let address = serve(held, StatusCode::INTERNAL_SERVER_ERROR).await;
        let reply = check(Some(&address), &[], &[]).await;
        assert_eq!(reply.code, 1);
        for part in ["not ready (500): source", "deletions held back: 3 ("] {
            assert!(reply.text.contains(part), "{}", reply.text);
        }
        let of_relay = "portolan_controller_upstream_deletions_held 140\n";
        let address = serve(of_relay, StatusCode::OK).await;
        let reply = check(Some(&address), &[], &[]).await;
        assert_eq!(reply.code, 1);
        let part = "records that the relay holds back: 140 (";
        assert!(reply.text.contains(part), "{}", reply.text);
        let foreign = serve("go_threads 7\n", StatusCode::OK).await;
        let pending = serve("portolan_agent_takeover_pending 1\n", StatusCode::OK).await;
        let agents = [format!("http://{foreign}"), format!("http://{pending}")];
        // A port that no other test takes.
        let closed = "127.0.0.1:1".to_owned();
        let reply = check(None, &agents, std::slice::from_ref(&closed)).await;
        assert_eq!(reply.code, 1);
        for part in [
            "no metrics of Portolan",
            "unfinished takeovers: 1",
            "no connection: ",
        ] {
            assert!(reply.text.contains(part), "{}", reply.text);
        }
        let reply = check(Some(&closed), &[], &[]).await;
        assert!(
            reply.code == 1 && reply.text.starts_with("FAILED"),
            "{}",
            reply.text
        );
    }
}
