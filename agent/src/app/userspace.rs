// SPDX-License-Identifier: Apache-2.0

//! Agents with sockets in place of a kernel's dataplane, and the command that such an agent runs.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

use anyhow::Context as _;
use portolan_runtime::{Vital, listen, raise_descriptor_limit};
use portolan_userspace::inside::{self, Inside, Running};
use portolan_userspace::{
    Asked, Clients, Listed, Metrics, Proxy, ProxyConfig, hosts, resolv_conf, unprivileged_port,
};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::ports::Ports;
use super::{GRACE, Parts, Place, start};
use crate::args::{RunArgs, RunCommandArgs, UserspaceArgs, UserspaceListen};
use crate::choice::Choice;
use crate::families::settle_userspace;
use crate::state_lock::StateLock;
use crate::sync::Userspace;

/// Runs a command that reaches the Services; without one, an agent with sockets until SIGTERM or SIGINT.
///
/// # Errors
/// If a flag cannot be used, the command cannot be started, or the agent fails.
pub async fn run_command(args: RunCommandArgs) -> anyhow::Result<ExitCode> {
    args.validate()?;
    let has_own_directory = args.has_own_directory();
    let RunCommandArgs { mut run, command } = args;
    // Deleted when this ends.
    let own = has_own_directory.then(|| TempDir::with_prefix("portolan-"));
    let own = own.transpose()?;
    if let Some(own) = &own {
        run.state_dir = own.path().to_owned();
    }
    if command.is_empty() {
        return super::run(run).await.map(|()| ExitCode::SUCCESS);
    }
    with_command(&run, &command).await
}

/// Runs a command until it ends.
async fn with_command(args: &RunArgs, command: &[OsString]) -> anyhow::Result<ExitCode> {
    args.validate()?;
    raise_descriptor_limit();
    let node = super::node_key(args)?;
    let _lock = StateLock::shared(&args.state_dir)?;
    let names = resolv_conf(
        &args.userspace.userspace_zone,
        &args.userspace.userspace_namespace,
    );
    let (inside, mut running) = inside::make(command, &names).await?;
    let token = CancellationToken::new();
    let (vital, mut failures) = Vital::new(token.clone());
    let ports = Ports::bind_or_wait(args).await?;
    let clients = Clients::Inside {
        inside: inside.clone(),
        zone: args.userspace.userspace_zone.clone(),
    };
    let proxy = proxy(args, clients)?;
    let listed = proxy.listed();
    let place = Place {
        node,
        ports,
        choice: Choice::USERSPACE,
    };
    start(args, parts(args, proxy, place)?, &vital).await?;
    let result = follow(&inside, &mut running, listed, &mut failures, command).await;
    token.cancel();
    vital.tasks.close();
    // The rest ends with the process.
    let _ = timeout(GRACE, vital.tasks.wait()).await;
    result
}

/// Starts the command when the Services are there, and waits for its end.
async fn follow(
    inside: &Inside,
    running: &mut Running,
    mut listed: watch::Receiver<Option<Vec<Listed>>>,
    failures: &mut mpsc::Receiver<anyhow::Error>,
    command: &[OsString],
) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    // A terminal interrupts the command too, which decides by itself.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut is_started = false;
    loop {
        tokio::select! {
            ready = listed.wait_for(Option::is_some), if !is_started => {
                ready.context("the agent ends")?;
                is_started = true;
                let program = || command[0].to_string_lossy().into_owned();
                if let Err(error) = inside.start().await {
                    tracing::error!("{}: {error}", program());
                }
            }
            status = running.ended() => return Ok(exit_code(status?)),
            Some(error) = failures.recv() => {
                running.terminate();
                return Err(error);
            }
            _ = terminate.recv() => running.terminate(),
            _ = interrupt.recv() => if !is_started {
                running.terminate();
            },
        }
    }
}

/// The exit code of the command, as shells have it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let signal = || status.signal().map(|signal| signal + 128);
    let code = status.code().or_else(signal);
    let code = code.and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Starts an agent whose clients are on this machine.
pub(super) async fn start_userspace(
    args: &RunArgs,
    place: Place,
    vital: &Vital,
) -> anyhow::Result<()> {
    let UserspaceArgs {
        userspace_listen,
        userspace_socks,
        userspace_zone: zone,
        userspace_namespace: namespace,
    } = &args.userspace;
    let clients = match userspace_listen {
        UserspaceListen::Loopback => Clients::Loopback {
            unprivileged: unprivileged_port(),
        },
        UserspaceListen::Socks => Clients::Asked,
    };
    let proxy = proxy(args, clients)?;
    match userspace_listen {
        UserspaceListen::Loopback => {
            let print = print(proxy.listed(), zone.clone());
            vital.spawn_endless("list of Services", print);
        }
        UserspaceListen::Socks => {
            let listener = listen(*userspace_socks)
                .await
                .context("--userspace-socks")?;
            tracing::info!(at = %userspace_socks, "SOCKS5 and HTTP CONNECT");
            let asked = Asked::new(&proxy, zone, namespace);
            vital.spawn_endless("SOCKS", asked.serve(listener));
        }
    }
    start(args, parts(args, proxy, place)?, vital).await
}

/// The sockets of an agent.
fn proxy(args: &RunArgs, clients: Clients) -> anyhow::Result<Proxy> {
    let config = ProxyConfig {
        clients,
        families: settle_userspace(args.families)?,
        drain: args.drain_timeout(),
        metrics: Metrics::default(),
    };
    Proxy::new(config).context("--userspace-zone")
}

fn parts(args: &RunArgs, proxy: Proxy, place: Place) -> anyhow::Result<Parts<Userspace>> {
    Ok(Parts {
        plane: None,
        reconciler: Userspace::new(proxy),
        settings: Vec::new(),
        families: settle_userspace(args.families)?,
        place,
    })
}

/// Prints lines of /etc/hosts for the Services on standard output, and all of them again after a change.
async fn print(mut listed: watch::Receiver<Option<Vec<Listed>>>, zone: String) {
    while listed.changed().await.is_ok() {
        let text = match &*listed.borrow_and_update() {
            Some(listed) => hosts(listed, &zone),
            None => continue,
        };
        let mut out = std::io::stdout().lock();
        // Without a reader nobody misses it.
        let _ = writeln!(out, "# Services are served here:");
        let _ = out.write_all(text.as_bytes());
        let _ = out.flush();
    }
    std::future::pending::<()>().await;
}
