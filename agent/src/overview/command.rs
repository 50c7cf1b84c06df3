// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent status`.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use axum::http::Method;

use super::{Overview, table, watch};
use crate::args::{StatusArgs, StatusOutput, full_name};
use crate::ask::ask;

/// Exit code of `--healthy` when something is not.
const UNHEALTHY: u8 = 3;

/// Asks the running agent, and prints its answer.
///
/// # Errors
/// If the agent does not answer, there is no load balancer of the name, or the answer cannot be written.
pub async fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    if args.watch {
        return watch::run(args).await;
    }
    let overview = request(args).await?;
    if args.healthy {
        let faults = overview.faults();
        faults.iter().for_each(|fault| tracing::error!("{fault}"));
        return Ok(match faults.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(UNHEALTHY),
        });
    }
    let text = match args.output {
        StatusOutput::Table => {
            let mut text = table::balancers(&overview);
            if args.name.is_some() {
                text.push_str(&table::backends(&overview));
            }
            text
        }
        StatusOutput::Json => format!("{:#}\n", serde_json::json!(overview)),
        StatusOutput::Yaml => serde_saphyr::to_string(&overview)?,
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // A reader that has gone is no error.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        written => written.context("standard output")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks for the load balancer of the arguments, or for all.
pub(super) async fn request(args: &StatusArgs) -> anyhow::Result<Overview> {
    let name = args.name.as_deref().map(full_name);
    let mut path = format!("/debug/balancers?usage={}", !args.healthy);
    if let Some(name) = &name {
        path.push_str(&format!("&name={name}"));
    }
    let overview: Overview = ask(&args.agent.address, Method::GET, &path, Vec::new()).await?;
    ensure!(
        name.is_none() || !overview.balancers.is_empty(),
        "no load balancer {}",
        name.unwrap_or_default()
    );
    Ok(overview)
}
