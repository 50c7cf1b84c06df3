// SPDX-License-Identifier: Apache-2.0

//! Portolan's two programs, as all tests start them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::cluster::POD_RANGES;
use crate::lane;

/// The port of the agents' admin server, each in its node's namespace.
pub const AGENT_ADMIN: u16 = 10249;

/// Disables the socket: all machines of a rig share one file system, so the default path would
/// collide.
const NO_SOCKET: &str = "--debug-listen=";

/// The path of a Portolan program: built beside the running test, or in `PORTOLAN_BIN_DIR`.
pub fn program(name: &str) -> Result<PathBuf> {
    let directory = match std::env::var_os("PORTOLAN_BIN_DIR") {
        Some(directory) => PathBuf::from(directory),
        None => {
            let test = std::env::current_exe()?;
            let profile = test.ancestors().find(|path| path.join(name).is_file());
            profile
                .with_context(|| format!("{name} is not built"))?
                .to_owned()
        }
    };
    let path = directory.join(name);
    ensure!(path.is_file(), "{} is not built", path.display());
    Ok(path)
}

/// A Debian package that `e2e/lanes/unpack` has unpacked, with the libraries that it needs.
#[derive(Debug, Clone)]
pub struct Unpacked(PathBuf);

impl Unpacked {
    /// The text of one of its files, by the path in the package.
    ///
    /// # Errors
    /// If it cannot be read, or is no UTF-8.
    pub fn read(&self, path: &str) -> std::io::Result<String> {
        std::fs::read_to_string(self.0.join(path))
    }

    /// A command that runs one of its programs, by the path in the package.
    #[must_use]
    pub fn command(&self, path: &str) -> Command {
        let mut command = Command::new(self.0.join(path));
        let libraries = ["usr/lib", "lib"].map(|directory| {
            let path = self.0.join(directory).join(machine());
            path.display().to_string()
        });
        command.env("LD_LIBRARY_PATH", libraries.join(":"));
        command
    }

    /// As [`Self::command`], of a program in Perl, with its modules.
    #[must_use]
    pub fn perl(&self, path: &str) -> Command {
        let of_version = ["usr/share/perl".to_owned()].into_iter();
        let of_version = of_version.chain(["perl", "perl5"].map(|directory| {
            let machine = machine();
            format!("usr/lib/{machine}/{directory}")
        }));
        let of_version = of_version.flat_map(|parent| std::fs::read_dir(self.0.join(parent)));
        let of_version = of_version.flatten().flatten().map(|entry| entry.path());
        let all = std::iter::once(self.0.join("usr/share/perl5")).chain(of_version);
        let all: Vec<_> = all.map(|path| path.display().to_string()).collect();
        let mut command = self.command(path);
        command.env("PERL5LIB", all.join(":"));
        command
    }
}

/// The name of this kind of machine in paths of Debian.
fn machine() -> String {
    format!("{}-linux-gnu", std::env::consts::ARCH)
}

/// An unpacked package with a program; `None` if it is not unpacked.
#[must_use]
pub fn unpacked(package: &str, path: &str) -> Option<Unpacked> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let root = target.join(package);
    root.join(path).is_file().then_some(Unpacked(root))
}

/// CoreDNS: of `PORTOLAN_COREDNS`, or built by `e2e/tools/build`. Without it the test is skipped,
/// which is said.
///
/// # Panics
/// If it cannot be built where there is a way to get Go.
#[must_use]
pub fn coredns_or_skip(test: &str) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("PORTOLAN_COREDNS") {
        return Some(path.into());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/build");
    let built = Command::new(script).arg("coredns").output();
    let built = built.expect("the build script starts");
    if built.status.code() == Some(3) {
        lane::missing(test, "no Go to build CoreDNS with");
        return None;
    }
    let said = String::from_utf8_lossy(&built.stdout);
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let directory = said.lines().next_back().expect("a directory");
    Some(Path::new(directory).join("coredns"))
}

/// The source of a controller's objects.
#[derive(Debug, Clone)]
pub enum Source {
    /// A directory of files.
    Files(PathBuf),
    /// A real API server, by its kubeconfig.
    Kubernetes(PathBuf),
    /// Several clusters, by the file or directory of their policy.
    Clusters(PathBuf),
}

/// The authentication between the programs.
#[derive(Debug, Clone)]
pub enum Trust {
    /// None: plaintext.
    Plaintext,
    /// Certificates that `portolan-controller certs` made in this directory.
    Certificates(PathBuf),
}

impl Trust {
    /// Makes an authority in a directory, and certificates of the controller at an address and of
    /// nodes. An existing authority is kept; all other certificates are replaced.
    pub fn certify(directory: &Path, server: &str, nodes: &[String]) -> Result<Self> {
        let mut command = Command::new(program("portolan-controller")?);
        command.args(["certs", "--server-name", server, "--dir"]);
        command.arg(directory);
        if !nodes.is_empty() {
            command.arg("--node").arg(nodes.join(","));
        }
        let made = command.output().context("portolan-controller certs")?;
        let said = String::from_utf8_lossy(&made.stderr);
        ensure!(made.status.success(), "portolan-controller certs: {said}");
        Ok(Self::Certificates(directory.to_owned()))
    }

    /// Gives a controller its credentials.
    pub fn of_controller(&self, command: &mut Command) {
        self.of("controller", command);
    }

    /// Gives an agent the credentials of a node.
    pub fn of_node(&self, node: &str, command: &mut Command) {
        self.of(&format!("nodes/{node}"), command);
    }

    fn of(&self, who: &str, command: &mut Command) {
        match self {
            Self::Plaintext => command.arg("--plaintext"),
            Self::Certificates(directory) => command.arg("--tls-dir").arg(directory.join(who)),
        };
    }
}

/// A controller without credentials. It serves agents at `port`, and admin requests at the next
/// one.
pub fn controller(source: &Source, port: u16) -> Result<Command> {
    let mut command = Command::new(program("portolan-controller")?);
    command
        .arg(format!("--listen=[::]:{port}"))
        .arg(format!("--admin-listen=[::]:{}", port + 1))
        .arg(NO_SOCKET);
    match source {
        Source::Files(objects) => {
            command.args(["--source=file", "--file-poll=20ms"]);
            command.arg("--file").arg(objects);
        }
        Source::Kubernetes(kubeconfig) => {
            command.args(["--source=kubernetes", "--kubeconfig"]);
            command.arg(kubeconfig);
        }
        Source::Clusters(policy) => {
            command.args(["--source=clusters", "--file-poll=20ms"]);
            command.arg("--policy-file").arg(policy);
        }
    }
    Ok(command)
}

/// The edge controller of a cluster, without credentials, which sends objects to a controller of several clusters. It
/// has ports as [`controller`].
pub fn edge(
    source: &Source,
    port: u16,
    (cluster, name): (&str, &str),
    centre: SocketAddr,
) -> Result<Command> {
    let mut command = controller(source, port)?;
    command
        .args(["--plaintext", "--federation-plaintext"])
        .arg(format!("--cluster={cluster}"))
        .arg(format!("--edge-name={name}"))
        .arg(format!("--federation-upstream={centre}"));
    Ok(command)
}

/// The agent of a node, without credentials. Its state is below `directory`.
pub fn agent(node: &str, controllers: &[SocketAddr], directory: &Path) -> Result<Command> {
    let mut command = Command::new(program("portolan-agent")?);
    command
        .arg(format!("--node-name={node}"))
        .arg(format!("--cluster-cidr={POD_RANGES}"))
        .arg(format!("--admin-listen=[::]:{AGENT_ADMIN}"))
        .arg(NO_SOCKET)
        // All nodes of a rig share one file system.
        .arg("--state-dir")
        .arg(directory.join(node));
    for controller in controllers {
        command.arg(format!("--controller={controller}"));
    }
    Ok(command)
}
