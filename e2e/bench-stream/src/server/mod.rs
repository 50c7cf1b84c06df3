// SPDX-License-Identifier: Apache-2.0

//! The measured server: one worker, on its own processor.

mod bare;
mod load;
mod ours;
mod plain;
mod relay;
mod rows;

use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use portolan_select::TableDelta;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use crate::usage::{Usage, now_ns, pin, raise_descriptors};
use crate::words::{Ask, Published, Told};
use crate::world::{Size, World};

/// Arguments of the server process.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    size: Size,
    /// The server to run
    #[arg(long, value_enum)]
    kind: Kind,
    /// The processor to run on
    #[arg(long)]
    cpu: usize,
    /// Number of changes to apply to the cluster before serving
    #[arg(long, default_value_t = 0)]
    changes: u32,
    /// Directory of certificates; enables TLS
    #[arg(long)]
    tls_dir: Option<PathBuf>,
    /// Port of the loopback of the server above a relay
    #[arg(long, default_value_t = 0)]
    upstream: u16,
    /// Number of bytes that a bare round writes to each socket
    #[arg(long, default_value_t = 139)]
    bare_bytes: usize,
}

/// The kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// The controller's server.
    Ours,
    /// Rows of strings, cloned and encoded by tonic for each agent.
    Rows,
    /// An unbounded queue of messages for each agent; tonic encodes each message for each agent.
    Queue,
    /// Sockets, and a loop that writes to each.
    Bare,
    /// A relay, whose tables come from another server.
    Relay,
}

impl Kind {
    /// The value of `--kind`.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A server that publishes changes.
trait Target: Send {
    /// Publishes a transition. Returns its revision.
    fn publish(&mut self, delta: &TableDelta) -> u64;

    /// Returns `true` if changes close in time are merged into one transition.
    fn is_debounced(&self) -> bool;

    /// The number of open streams.
    fn streams(&self) -> usize;
}

/// Serves until the driver closes its end.
pub(crate) fn run(args: ServerArgs) -> Result<()> {
    pin(args.cpu)?;
    raise_descriptors()?;
    let mut world = World::new(args.size)?;
    (0..args.changes).for_each(|_| {
        world.change(&mut TableDelta::default());
    });
    if args.kind == Kind::Bare {
        return bare::run(args.bare_bytes);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("tokio")?;
    let (sender, asks) = mpsc::channel(1);
    let (gone, driver) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        // Dropped when the driver is gone, whatever the server is doing.
        let _gone = gone;
        for ask in asks_of_driver() {
            // The driver notices a failure by the end of the answers.
            if ask.is_err() || sender.blocking_send(ask).is_err() {
                return;
            }
        }
    });
    runtime.block_on(async {
        tokio::select! {
            served = tokio::spawn(serve(args, world, asks)) => served?,
            _ = driver => Ok(()),
        }
    })
}

async fn serve(args: ServerArgs, world: World, asks: mpsc::Receiver<Result<Ask>>) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let target: Box<dyn Target> = match args.kind {
        Kind::Ours => Box::new(ours::start(listener, &world, args.tls_dir.as_deref())?),
        Kind::Rows => Box::new(plain::start(listener, rows::snapshot(&world))?),
        Kind::Relay => Box::new(relay::start(listener, args.upstream).await?),
        Kind::Queue | Kind::Bare => Box::new(plain::start(listener, Vec::new())?),
    };
    tell(&Told::Ready { port })?;
    answer(world, target, asks).await
}

async fn answer(
    mut world: World,
    mut target: Box<dyn Target>,
    mut asks: mpsc::Receiver<Result<Ask>>,
) -> Result<()> {
    while let Some(ask) = asks.recv().await {
        let told = match ask? {
            Ask::Usage => Told::Usage(Usage::now()?),
            Ask::Streams(wanted) => {
                let mut ticks = tokio::time::interval(std::time::Duration::from_millis(20));
                while target.streams() != wanted {
                    ticks.tick().await;
                }
                Told::Streams
            }
            Ask::Change(count) => {
                let mut delta = TableDelta::default();
                (0..count).for_each(|_| {
                    world.change(&mut delta);
                });
                let at_ns = now_ns();
                let revision = target.publish(&delta);
                Told::Published(Published { revision, at_ns })
            }
            Ask::Load { rate, seconds } => {
                load::run(&mut world, &mut *target, rate, seconds).await?
            }
        };
        tell(&told)?;
    }
    Ok(())
}

/// The driver's orders, until it closes its end. Blocks.
fn asks_of_driver() -> impl Iterator<Item = Result<Ask>> {
    let lines = std::io::stdin().lock().lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?))
}

fn tell(told: &Told) -> Result<()> {
    writeln!(std::io::stdout(), "{}", serde_json::to_string(told)?)?;
    Ok(())
}
