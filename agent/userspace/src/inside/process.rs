// SPDX-License-Identifier: Apache-2.0

//! The process between the agent and its command: it lives in the command's namespaces, makes sockets there for the
//! agent, and ends with the command's exit code.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};

use rtnetlink::Handle;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::channel::{self, Answer, Channel, Numbered, READY, Request};
use super::namespaces;
use crate::listen::listen;

/// The first argument of a process that is to run this.
pub const ARGUMENT: &str = "in-namespaces-of-command";

/// Exit code of what failed before the command could run.
const NOT_RUN: u8 = 126;

/// Exit code of a command that is not there.
const NOT_FOUND: u8 = 127;

/// Exit code of what SIGTERM ends, as shells have it.
const TERMINATED: u8 = 128 + 15;

/// Runs if the arguments of this process say so: call it before any thread is started.
#[must_use]
pub fn asked(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    if arguments.nth(1)? != ARGUMENT {
        return None;
    }
    Some(run(arguments).unwrap_or(ExitCode::from(NOT_RUN)))
}

/// Arguments: the socket of the agent, the command's resolv.conf, the command, and its arguments.
fn run(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let (socket, resolv_conf) = (arguments.next()?, arguments.next()?);
    let command: Vec<_> = arguments.collect();
    let (program, arguments) = command.split_first()?;
    let socket = channel::connect(Path::new(&socket)).ok()?;
    if let Err(error) = namespaces::enter(Path::new(&resolv_conf)) {
        let answer = numbered(READY, Answer::Failed(error.to_string()));
        let answer = serde_json::to_vec(&answer).ok()?;
        channel::send(socket.as_fd(), &answer, None).ok()?;
        return None;
    }
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().ok()?;
    let mut command = Command::new(program);
    command.args(arguments);
    runtime.block_on(serve(socket, command)).ok()
}

/// Serves the agent, and runs the command when that asks for it.
async fn serve(socket: OwnedFd, command: Command) -> io::Result<ExitCode> {
    let channel = Channel::new(socket)?;
    let (connection, handle, _) = rtnetlink::new_connection()?;
    tokio::spawn(connection);
    let up = namespaces::bring_up(&handle).await;
    channel.send(&numbered(READY, answer(&up)), None).await?;
    until_end(&channel, &handle, command).await
}

/// Handles requests and signals until the command ends. It ends with the agent.
pub(super) async fn until_end(
    channel: &Channel,
    handle: &Handle,
    mut command: Command,
) -> io::Result<ExitCode> {
    let mut child = None;
    match follow(channel, handle, &mut command, &mut child).await {
        Ok(code) => Ok(code),
        Err(_) => without_agent(child).await,
    }
}

/// Handles requests and signals until the command ends, or the agent cannot be heard or answered any more.
async fn follow(
    channel: &Channel,
    handle: &Handle,
    command: &mut Command,
    child: &mut Option<Child>,
) -> io::Result<ExitCode> {
    let mut signals = Signals::new()?;
    loop {
        tokio::select! {
            status = ended(child) => return Ok(exit_code(status?)),
            // A terminal tells the command too.
            _ = signals.interrupt.recv() => {}
            _ = signals.terminate.recv() => if let Some(code) = on_terminate(child.as_ref()) {
                return Ok(code);
            },
            request = channel.receive::<Numbered<Request>>() => {
                let (request, _) = request?.ok_or(io::ErrorKind::UnexpectedEof)?;
                let handled = handled(handle, command, child, request.message).await;
                let socket = handled.as_ref().ok().and_then(Option::as_ref);
                let answer = numbered(request.number, answer(&handled));
                channel.send(&answer, socket.map(OwnedFd::as_fd)).await?;
                if let Err(Failure::Start(error)) = handled {
                    let is_missing = error.kind() == io::ErrorKind::NotFound;
                    return Ok(ExitCode::from(if is_missing { NOT_FOUND } else { NOT_RUN }));
                }
            }
        }
    }
}

fn numbered<T>(number: u64, message: T) -> Numbered<T> {
    Numbered { number, message }
}

/// Signals that this process outlives.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }
}

/// Reason why a request is not done.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Route(#[from] rtnetlink::Error),
    #[error(transparent)]
    Open(io::Error),
    #[error(transparent)]
    Start(io::Error),
}

/// Handles a request; returns the socket that it asks for.
async fn handled(
    handle: &Handle,
    command: &mut Command,
    child: &mut Option<Child>,
    request: Request,
) -> Result<Option<OwnedFd>, Failure> {
    match request {
        Request::Route(address) => namespaces::route(handle, address).await?,
        Request::NoRoute(address) => namespaces::unroute(handle, address).await?,
        Request::Open(wanted) => return listen(&wanted).map(Some).map_err(Failure::Open),
        Request::Start => *child = Some(command.spawn().map_err(Failure::Start)?),
    }
    Ok(None)
}

fn answer<T, E: std::fmt::Display>(result: &Result<T, E>) -> Answer {
    match result {
        Ok(_) => Answer::Done,
        Err(error) => Answer::Failed(error.to_string()),
    }
}

/// Waits for the end of a command; for ever without one.
async fn ended(child: &mut Option<Child>) -> io::Result<ExitStatus> {
    match child {
        Some(child) => child.wait().await,
        None => std::future::pending().await,
    }
}

/// Asks the command to end. Returns the exit code if there is none yet: nothing is to be waited for.
pub(super) fn on_terminate(child: Option<&Child>) -> Option<ExitCode> {
    if child.is_none() {
        return Some(ExitCode::from(TERMINATED));
    }
    tell(child);
    None
}

/// Asks the command to end.
fn tell(child: Option<&Child>) {
    let id = child
        .and_then(Child::id)
        .and_then(|id| i32::try_from(id).ok());
    if let Some(id) = id.and_then(Pid::from_raw) {
        // It may have ended by itself.
        let _ = kill_process(id, Signal::TERM);
    }
}

/// Ends the command of an agent that is gone: nothing would answer it any more.
async fn without_agent(mut child: Option<Child>) -> io::Result<ExitCode> {
    if child.is_none() {
        return Ok(ExitCode::from(NOT_RUN));
    }
    tell(child.as_ref());
    Ok(exit_code(ended(&mut child).await?))
}

/// The exit code of a command, as shells have it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let signal = || status.signal().map(|signal| signal + 128);
    let code = status.code().or_else(signal);
    ExitCode::from(
        code.and_then(|code| u8::try_from(code).ok())
            .unwrap_or(NOT_RUN),
    )
}
