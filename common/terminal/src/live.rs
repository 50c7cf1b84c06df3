// SPDX-License-Identifier: Apache-2.0

//! The loop of a live view.
//!
//! ```text
//! terminal ──► keys ────┐
//! program ──► answers ──┼──► view ──► frame (pure)
//! ```

use std::io::{IsTerminal as _, stdin, stdout};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::BoxFuture;
use ratatui::crossterm::event::{self, Event, KeyEvent};
use ratatui::{DefaultTerminal, Frame};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval as ticks_of, timeout};

use crate::Flow;

/// Longest time of one request: the first answer about rates takes two seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Longest time until the reader of keys notices the end of the view.
const KEY_POLL: Duration = Duration::from_millis(100);

/// Keys that may wait; the reader of keys waits for room.
const KEYS: usize = 16;

/// A view of answers.
pub trait Live {
    /// Answer that the view shows.
    type Answer;

    /// Takes an answer. After an error the last one stays.
    fn take(&mut self, answer: anyhow::Result<Self::Answer>);

    /// Takes a key.
    fn press(&mut self, key: KeyEvent) -> Flow;

    /// Draws the view. Pure.
    fn draw(&self, frame: &mut Frame<'_>);
}

/// Returns `true` if standard input and output are a terminal.
#[must_use]
pub fn has_terminal() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// Shows answers until the user ends it. The terminal is restored at the end, and if the program panics.
///
/// # Errors
/// If the terminal fails.
pub async fn watch<'a, L: Live>(
    view: &mut L,
    interval: Duration,
    ask: impl Fn() -> BoxFuture<'a, anyhow::Result<L::Answer>>,
) -> anyhow::Result<()> {
    let mut end = signal(SignalKind::terminate())?;
    let mut terminal = ratatui::try_init().context("the terminal")?;
    let shown = tokio::select! {
        shown = show(&mut terminal, view, interval, ask) => shown,
        _ = end.recv() => Ok(()),
    };
    ratatui::try_restore().context("the terminal")?;
    shown
}

/// A request that runs, and what it finds.
type Pending<'a, T> = Option<BoxFuture<'a, anyhow::Result<T>>>;

async fn show<'a, L: Live>(
    terminal: &mut DefaultTerminal,
    view: &mut L,
    interval: Duration,
    ask: impl Fn() -> BoxFuture<'a, anyhow::Result<L::Answer>>,
) -> anyhow::Result<()> {
    let mut events = events();
    let mut ticks = ticks_of(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    let mut pending: Pending<'_, L::Answer> = None;
    loop {
        terminal
            .draw(|frame| view.draw(frame))
            .context("the terminal")?;
        tokio::select! {
            event = events.recv() => match event {
                Some(Ok(Event::Key(key))) if view.press(key) == Flow::Quit => return Ok(()),
                // A resize is drawn.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error).context("the terminal"),
                None => return Ok(()),
            },
            // A program that is slow is asked no faster than it answers.
            _ = ticks.tick(), if pending.is_none() => {
                let request = ask();
                pending = Some(Box::pin(async {
                    timeout(PATIENCE, request).await.context("no answer in time")?
                }));
            }
            found = answer(&mut pending) => {
                pending = None;
                view.take(found);
            }
        }
    }
}

/// The answer of the request that runs; never without one.
async fn answer<T>(pending: &mut Pending<'_, T>) -> anyhow::Result<T> {
    match pending {
        Some(request) => request.await,
        None => std::future::pending().await,
    }
}

/// Returns the events of the terminal, until the receiver is dropped.
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
