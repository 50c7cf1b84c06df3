// SPDX-License-Identifier: Apache-2.0

//! The programs of a control plane on this machine, or the reason why they are missing.

use std::env;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// The servers cannot run on this machine: the reason to skip a test, not a defect.
#[derive(Debug)]
pub struct Missing(String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// The directory of the programs.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// Holds all of [`NAMES`].
    directory: PathBuf,
}

const NAMES: [&str; 5] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kubectl",
];

impl Binaries {
    pub(super) fn find() -> Result<Self> {
        find_program("openssl").ok_or_else(|| Missing("no openssl".into()))?;
        let directory = find_directory()?;
        Ok(Self { directory })
    }

    /// The path of a program: etcd, kube-apiserver, kube-controller-manager, kube-proxy, kubectl.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

fn find_directory() -> Result<PathBuf> {
    let complete = |dir: &PathBuf| NAMES.iter().all(|name| dir.join(name).is_file());
    // Assets for other purposes lack the controller manager. They are skipped.
    let assets = env::var_os("KUBEBUILDER_ASSETS")
        .map(PathBuf::from)
        .filter(complete);
    if let Some(dir) = assets {
        return Ok(dir);
    }
    let Some(dir) = env::var_os("PORTOLAN_TOOLS_BIN").map(PathBuf::from) else {
        return build_tools();
    };
    ensure!(
        complete(&dir),
        "PORTOLAN_TOOLS_BIN lacks some of {}",
        NAMES.join(" ")
    );
    Ok(dir)
}

/// Runs the build script. Its progress is printed, as the first build takes minutes.
fn build_tools() -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/build");
    let mut child = Command::new(&script)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("run {}", script.display()))?;
    let mut reason = String::new();
    for line in BufReader::new(child.stderr.take().context("the build's stderr")?).lines() {
        reason = line?;
        let _ = writeln!(io::stderr(), "{reason}");
    }
    let output = child.wait_with_output()?;
    match output.status.code() {
        Some(0) => {}
        Some(3) => return Err(Missing(reason).into()),
        _ => bail!("{}: {}: {reason}", script.display(), output.status),
    }
    let stdout = String::from_utf8(output.stdout).context("the build's stdout")?;
    Ok(stdout
        .lines()
        .next_back()
        .context("the build printed no directory")?
        .into())
}
