// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent status --watch`: a live view in a terminal.

mod render;
mod view;

use std::process::ExitCode;

use portolan_terminal::{Live as _, has_terminal, watch};

use super::command::request;
use crate::args::StatusArgs;
use view::View;

/// Exit code without a terminal.
const NO_TERMINAL: u8 = 2;

/// Shows the running agent's load balancers until the user ends it.
///
/// # Errors
/// If the terminal fails, or the agent does not answer the first request.
pub(super) async fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    if !has_terminal() {
        tracing::error!("--watch needs a terminal: standard input or output is none");
        return Ok(ExitCode::from(NO_TERMINAL));
    }
    // Before the terminal changes: a wrong name or address is told as without --watch.
    let first = request(args).await?;
    let mut view = View::new(args.name.is_some());
    view.take(Ok(first));
    watch(&mut view, args.interval, || Box::pin(request(args))).await?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests;
