// SPDX-License-Identifier: Apache-2.0

//! Network namespaces: made and removed in bulk by the `ip` tool, entered by threads of this process.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The directory in which the `ip` tool keeps named namespaces.
const DIRECTORY: &str = "/run/netns";

/// The prefix of the name of every rig's namespaces; the process id follows.
const PREFIX: &str = "portolan-";

static RIGS: AtomicU32 = AtomicU32::new(0);

/// One network namespace, by name. Copies are cheap and name the same one.
#[derive(Clone, Debug)]
pub struct Namespace {
    name: Arc<str>,
}

impl Namespace {
    /// All namespaces of this process's rigs, by name.
    pub(super) fn all() -> Result<Vec<Self>> {
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let mut names = Vec::new();
        for entry in fs::read_dir(DIRECTORY).with_context(|| format!("read {DIRECTORY}"))? {
            names.extend(entry?.file_name().into_string());
        }
        names.retain(|name| name.starts_with(&prefix));
        names.sort();
        let all = names.into_iter().map(|name| Self { name: name.into() });
        Ok(all.collect())
    }

    /// The namespace of a process. The name, which a later rig removes, keeps it alive.
    pub(super) fn of_process(pid: u32) -> Result<Self> {
        let name = format!("{PREFIX}{}-process-{pid}", std::process::id());
        if !Path::new(DIRECTORY).join(&name).exists() {
            ip_batch(&[format!("netns attach {name} {pid}")])?;
        }
        Ok(Self { name: name.into() })
    }

    /// The name that `ip netns` lists.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> PathBuf {
        Path::new(DIRECTORY).join(&*self.name)
    }

    /// Runs `work` on a thread that has entered the namespace. Sockets made there stay there, and so do
    /// processes started there; the thread ends with the work.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let worker = || -> Result<T> {
            self.enter()?;
            Ok(work())
        };
        thread::scope(|scope| scope.spawn(worker).join())
            .unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    }

    /// Moves the calling thread into the namespace, for good.
    pub(super) fn enter(&self) -> Result<()> {
        let path = self.path();
        let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .with_context(|| format!("enter {}", self.name))
    }

    /// Runs a program in the namespace and returns its output; fails if it fails.
    pub fn exec(&self, command: &[&str]) -> Result<String> {
        self.exec_with_input(command, "")
    }

    /// As [`Self::exec`], with something on standard input.
    pub fn exec_with_input(&self, command: &[&str], input: &str) -> Result<String> {
        self.run(|| exec(command, input))?
            .with_context(|| format!("in {}", self.name))
    }

    /// Runs many `ip` commands (without the word `ip`) in one process.
    pub fn ip(&self, commands: &[String]) -> Result<()> {
        self.run(|| ip_batch(commands))?
            .with_context(|| format!("in {}", self.name))
    }

    /// Sets kernel parameters, given as paths below `/proc/sys/net`.
    pub fn sysctl(&self, parameters: &[(&str, &str)]) -> Result<()> {
        self.run(|| {
            parameters.iter().try_for_each(|(key, value)| {
                let path = format!("/proc/sys/net/{key}");
                fs::write(&path, value).with_context(|| format!("write {value} to {path}"))
            })
        })?
    }
}

fn ip_batch(commands: &[String]) -> Result<()> {
    let mut script = commands.join("\n");
    script.push('\n');
    exec(&["ip", "-batch", "-"], &script)
        .map(|_| ())
        .with_context(|| format!("of\n{script}"))
}

fn exec(command: &[&str], input: &str) -> Result<String> {
    let output = output_of(command, input).with_context(|| format!("run {}", command.join(" ")))?;
    ensure!(
        output.status.success(),
        "{}: {}: {}{}",
        command.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout),
    );
    Ok(String::from_utf8(output.stdout)?)
}

fn output_of(command: &[&str], input: &str) -> Result<Output> {
    let (program, arguments) = command.split_first().context("no program")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // The tools read all their input before they print much, so writing first cannot deadlock. One that
    // ends early has an exit status that says more than the broken pipe.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input.as_bytes());
    }
    Ok(child.wait_with_output()?)
}

/// The namespaces of one rig. Dropping it removes them all, those of its pods too.
#[derive(Debug)]
pub(super) struct NamespaceSet {
    prefix: String,
    names: Mutex<Vec<Arc<str>>>,
}

impl NamespaceSet {
    /// An empty set with unique names; removes the leftovers of dead processes.
    pub(super) fn new() -> Self {
        remove_leftovers();
        let rig = RIGS.fetch_add(1, Ordering::Relaxed);
        Self {
            prefix: format!("{PREFIX}{}-{rig}-", std::process::id()),
            names: Mutex::default(),
        }
    }

    /// Makes a namespace for each of the names, all in one process, with IPv6 usable at once.
    pub(super) fn add(&self, names: &[String]) -> Result<Vec<Namespace>> {
        let names: Vec<Arc<str>> = names
            .iter()
            .map(|name| format!("{}{name}", self.prefix).into())
            .collect();
        let commands: Vec<String> = names
            .iter()
            .map(|name| format!("netns add {name}"))
            .collect();
        self.names
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(names.iter().cloned());
        ip_batch(&commands)?;
        names
            .into_iter()
            .map(|name| {
                let namespace = Namespace { name };
                namespace.sysctl(&DEFAULTS)?;
                Ok(namespace)
            })
            .collect()
    }

    /// Removes one namespace before the others.
    pub(super) fn remove(&self, namespace: &Namespace) -> Result<()> {
        self.names
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|name| *name != namespace.name);
        ip_batch(&[format!("netns del {}", namespace.name)])
    }
}

/// No duplicate address detection (addresses work at once), no reverse path filter, and no limit on ICMP
/// errors: a host that refuses more than six requests in a row would become silent.
const DEFAULTS: [(&str, &str); 6] = [
    ("ipv4/icmp_ratelimit", "0"),
    ("ipv4/icmp_ratemask", "0"),
    ("ipv6/icmp/ratelimit", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
];

impl Drop for NamespaceSet {
    fn drop(&mut self) {
        let names = self.names.get_mut().unwrap_or_else(PoisonError::into_inner);
        remove_all(names.iter().map(|name| &**name));
    }
}

/// Removes the namespaces of processes that were killed before they could.
fn remove_leftovers() {
    let Ok(entries) = fs::read_dir(DIRECTORY) else {
        return;
    };
    let names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| owner(name).is_some_and(|pid| !Path::new("/proc").join(pid).exists()))
        .collect();
    remove_all(names.iter().map(String::as_str));
}

/// The process id in the name of a rig's namespace.
fn owner(name: &str) -> Option<&str> {
    Some(name.strip_prefix(PREFIX)?.split_once('-')?.0)
}

/// Best effort: a later rig removes the rest.
fn remove_all<'a>(names: impl Iterator<Item = &'a str>) {
    let script: String = names.map(|name| format!("netns del {name}\n")).collect();
    if !script.is_empty() {
        let _ = output_of(&["ip", "-force", "-batch", "-"], &script);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_rigs_have_an_owner() {
        assert_eq!(owner("portolan-123-0-node1"), Some("123"));
        assert_eq!(owner("portolan-"), None);
        assert_eq!(owner("cni-123-0"), None);
    }
}
