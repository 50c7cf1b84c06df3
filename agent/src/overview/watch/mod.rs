// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent status --watch`: a live view in a terminal.
//!
//! ```text
//! terminal ──► keys ──┐
//! agent ──► overview ─┼──► View ──► frame (pure)
//! ```

mod render;
mod view;

use std::io::{IsTerminal as _, stdin, stdout};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::BoxFuture;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::Overview;
use super::command::request;
use crate::args::StatusArgs;
use view::{Flow, View};

/// Exit code without a terminal.
const NO_TERMINAL: u8 = 2;

/// Longest time of one request: the first answer takes two seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Longest time until the reader of keys notices the end of the view.
const KEY_POLL: Duration = Duration::from_millis(100);

/// Keys that may wait; the reader of keys waits for room.
const KEYS: usize = 16;

/// A request that runs, and what it finds.
type Pending<'a> = Option<BoxFuture<'a, anyhow::Result<Overview>>>;

/// Shows the running agent's load balancers until the user ends it. The terminal is restored at the end, and if the
/// program panics.
///
/// # Errors
/// If the terminal fails, or the agent does not answer the first request.
pub(super) async fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    if !(stdin().is_terminal() && stdout().is_terminal()) {
        tracing::error!("--watch needs a terminal: standard input or output is none");
        return Ok(ExitCode::from(NO_TERMINAL));
    }
    // Before the terminal changes: a wrong name or address is told as without --watch.
    let first = request(args).await?;
    let mut view = View::new(args.name.is_some());
    view.take(Ok(first));
    let mut end = signal(SignalKind::terminate())?;
    let mut terminal = ratatui::try_init().context("the terminal")?;
    let shown = tokio::select! {
        shown = show(&mut terminal, &mut view, args) => shown,
        _ = end.recv() => Ok(()),
    };
    ratatui::try_restore().context("the terminal")?;
    shown.map(|()| ExitCode::SUCCESS)
}

async fn show(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    args: &StatusArgs,
) -> anyhow::Result<()> {
    let mut events = events();
    let mut ticks = interval(args.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    let mut pending: Pending<'_> = None;
    loop {
        terminal
            .draw(|frame| render::draw(view, frame))
            .context("the terminal")?;
        tokio::select! {
            event = events.recv() => match event {
                Some(Ok(Event::Key(key))) if view.press(key) == Flow::Quit => return Ok(()),
                // A resize is drawn.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error).context("the terminal"),
                None => return Ok(()),
            },
            // An agent that is slow is asked no faster than it answers.
            _ = ticks.tick(), if pending.is_none() => {
                pending = Some(Box::pin(ask(args)));
            }
            found = answer(&mut pending) => {
                pending = None;
                view.take(found);
            }
        }
    }
}

async fn ask(args: &StatusArgs) -> anyhow::Result<Overview> {
    timeout(PATIENCE, request(args))
        .await
        .context("no answer in time")?
}

/// The answer of the request that runs; never without one.
async fn answer(pending: &mut Pending<'_>) -> anyhow::Result<Overview> {
    match pending {
        Some(request) => request.await,
        None => std::future::pending().await,
    }
}

/// What the terminal says, until the receiver is dropped.
fn events() -> mpsc::Receiver<std::io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(KEYS);
    tokio::task::spawn_blocking(move || {
        while !sender.is_closed() {
            let event = match event::poll(KEY_POLL) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let is_last = event.is_err();
            if sender.blocking_send(event).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests;
