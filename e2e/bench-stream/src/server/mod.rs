//! The program whose cost is measured: one worker, on a processor of its own.

mod bare;
mod load;
mod ours;
mod plain;
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

/// What to serve, and how.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    size: Size,
    /// Which way to serve
    #[arg(long, value_enum)]
    kind: Kind,
    /// The processor to run on
    #[arg(long)]
    cpu: usize,
    /// How many changes the cluster has seen before
    #[arg(long, default_value_t = 0)]
    changes: u32,
    /// Certificates, for TLS
    #[arg(long)]
    tls_dir: Option<PathBuf>,
    /// How many bytes a bare round writes to each socket
    #[arg(long, default_value_t = 139)]
    bare_bytes: usize,
}

/// A way to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// The controller's.
    Ours,
    /// Rows of strings, cloned and encoded by tonic for each agent.
    Rows,
    /// A queue for each agent, of messages that tonic encodes for each.
    Queue,
    /// Sockets, and a loop that writes to each.
    Bare,
}

impl Kind {
    /// Its name as an argument.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Where changes go.
trait Target: Send {
    /// Publishes a transition, and says the revision that has it.
    fn publish(&mut self, delta: &TableDelta) -> u64;

    /// Whether changes that come close together make one transition.
    fn is_debounced(&self) -> bool;

    /// How many streams there are.
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
        // Dropped when the driver is gone, whatever the server is at.
        let _gone = gone;
        for ask in asks_of_driver() {
            // The driver learns of what went wrong from the end of the answers.
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

/// What the driver asks, until it has nothing more to ask. Blocks.
fn asks_of_driver() -> impl Iterator<Item = Result<Ask>> {
    let lines = std::io::stdin().lock().lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?))
}

fn tell(told: &Told) -> Result<()> {
    writeln!(std::io::stdout(), "{}", serde_json::to_string(told)?)?;
    Ok(())
}
