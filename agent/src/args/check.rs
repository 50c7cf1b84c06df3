// SPDX-License-Identifier: Apache-2.0

//! Flags of `check`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};

use super::backend::{BackendName, full_name};

/// Commands about health checks.
#[derive(Debug, Subcommand)]
pub enum CheckCommand {
    /// Run the checks of load balancers in files once against their backends, and print a line for each backend and
    /// check. Needs no agent, and leaves the kernel as it is. The programs of `exec` checks are run. The exit
    /// code is 0 if all pass, 3 if one fails, and 1 if a file is bad, nothing is checked, or a check gave no
    /// verdict.
    Run(CheckRunArgs),
}

/// Flags of `check run`.
#[derive(Debug, Args)]
pub struct CheckRunArgs {
    /// A file, or a directory of which all *.yaml, *.yml and *.json are read.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,

    /// One load balancer, or one of its backends; all without it.
    #[arg(value_name = "[NAMESPACE/]NAME[/ADDRESS[:PORT]]")]
    pub name: Option<CheckedName>,

    /// Name of the host, whose `Director` has the defaults of checks. Default: the host name.
    #[arg(long, env = "PORTOLAN_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,
}

/// A load balancer, or backends of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckedName {
    /// All backends of a load balancer: `NAMESPACE/NAME`.
    Balancer(String),
    /// Those of an address.
    Backend(BackendName),
}

/// A text that names neither.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected [NAMESPACE/]NAME or [NAMESPACE/]NAME/ADDRESS[:PORT], such as web/10.0.0.11:8080")]
pub struct BadCheckedName;

impl FromStr for CheckedName {
    type Err = BadCheckedName;

    fn from_str(text: &str) -> Result<Self, BadCheckedName> {
        if let Ok(backend) = text.parse() {
            return Ok(Self::Backend(backend));
        }
        let mut parts = text.split('/');
        let is_name = |part: &str| !part.is_empty() && !part.contains(char::is_whitespace);
        match parts.clone().count() <= 2 && parts.all(is_name) {
            true => Ok(Self::Balancer(full_name(text))),
            false => Err(BadCheckedName),
        }
    }
}

impl fmt::Display for CheckedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Balancer(name) => f.write_str(name),
            Self::Backend(name) => name.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_balancer_or_a_backend_is_named() {
        for (text, full) in [
            ("web", "default/web"),
            ("shop/web", "shop/web"),
            ("web/10.0.0.1", "default/web/10.0.0.1"),
            ("shop/web/[fd00::1]:80", "shop/web/[fd00::1]:80"),
        ] {
            assert_eq!(text.parse::<CheckedName>().unwrap().to_string(), full);
        }
        for bad in ["", "a/b/c", "/web", "web/", "we b"] {
            assert_eq!(bad.parse::<CheckedName>(), Err(BadCheckedName), "{bad:?}");
        }
    }
}
