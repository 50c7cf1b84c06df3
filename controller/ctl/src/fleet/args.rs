// SPDX-License-Identifier: Apache-2.0

//! Arguments of the commands.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use portolan_etcd::{EtcdArgs, Name};
use serde_json::Value;

/// Arguments of `apply`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ApplyArgs {
    /// A file or directory of LoadBalancers, Directors and Nodes (YAML or JSON); may be repeated.
    #[arg(
        short,
        long,
        value_name = "PATH",
        value_delimiter = ',',
        required = true
    )]
    pub(crate) file: Vec<PathBuf>,

    /// Delete the stored objects with the labels of --selector that the files do not have.
    #[arg(id = "prune", long = "prune", requires = "selector")]
    _prune: bool,

    /// Labels of the objects to prune, as NAME=VALUE[,NAME=VALUE...].
    #[arg(
        id = "selector",
        short = 'l',
        long = "selector",
        requires = "prune",
        value_name = "LABELS"
    )]
    pub(crate) prune: Option<Selector>,

    /// Only show what would be written.
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
}

/// Arguments of `get`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GetArgs {
    /// The kind.
    #[arg(default_value = "all")]
    kind: KindName,

    /// The name; of a load balancer NAMESPACE/NAME, or NAME in the namespace default.
    name: Option<String>,

    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
}

impl GetArgs {
    /// The one object that is asked for.
    pub(crate) fn name(&self) -> anyhow::Result<Option<Name>> {
        let name = self.name.as_ref();
        name.map(|name| self.kind.name(name)).transpose()
    }

    pub(crate) fn selects(&self, name: &Name) -> bool {
        match self.name() {
            Ok(Some(wanted)) => wanted == *name,
            _ => self.kind.has(name),
        }
    }
}

/// Arguments of `delete`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DeleteArgs {
    /// The kind.
    #[arg(required_unless_present = "file")]
    kind: Option<KindName>,

    /// The names; of load balancers NAMESPACE/NAME, or NAME in the namespace default.
    #[arg(required_unless_present = "file")]
    name: Vec<String>,

    /// A file or directory with the objects to delete; may be repeated.
    #[arg(
        short,
        long,
        value_name = "PATH",
        value_delimiter = ',',
        conflicts_with = "kind"
    )]
    pub(crate) file: Vec<PathBuf>,

    /// Only show what would be deleted.
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
}

impl DeleteArgs {
    pub(crate) fn names(&self) -> anyhow::Result<Vec<Name>> {
        let kind = self.kind.unwrap_or(KindName::All);
        self.name.iter().map(|name| kind.name(name)).collect()
    }
}

/// Kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindName {
    /// All kinds.
    All,
    /// Load balancers.
    #[value(name = "loadbalancers", aliases = ["loadbalancer", "lb"])]
    LoadBalancers,
    /// Directors.
    #[value(alias = "director")]
    Directors,
    /// Nodes.
    #[value(alias = "node")]
    Nodes,
}

impl KindName {
    fn has(self, name: &Name) -> bool {
        match name {
            Name::LoadBalancer { .. } => matches!(self, Self::All | Self::LoadBalancers),
            Name::Director(_) => matches!(self, Self::All | Self::Directors),
            Name::Node(_) => matches!(self, Self::All | Self::Nodes),
        }
    }

    fn name(self, text: &str) -> anyhow::Result<Name> {
        Ok(match self {
            Self::All => anyhow::bail!("{text:?}: expected a kind before the name"),
            Self::LoadBalancers => {
                let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
                Name::LoadBalancer {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                }
            }
            Self::Directors => Name::Director(text.to_owned()),
            Self::Nodes => Name::Node(text.to_owned()),
        })
    }
}

/// Labels that an object must have; not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selector(BTreeMap<String, String>);

/// A text that is no selector.
#[derive(Debug, thiserror::Error)]
#[error("expected NAME=VALUE[,NAME=VALUE...]")]
pub(crate) struct SelectorError;

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let label = |part: &str| {
            let (name, value) = part.split_once('=')?;
            (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
        };
        let labels: Option<_> = text.split(',').map(label).collect();
        labels.map(Self).ok_or(SelectorError)
    }
}

impl Selector {
    /// Returns `true` if an object has all the labels.
    pub(crate) fn selects(&self, object: &Value) -> bool {
        let labels = object.pointer("/metadata/labels");
        let has = |(name, value): (&String, &String)| {
            let found = labels.and_then(|labels| labels.get(name));
            found.and_then(Value::as_str) == Some(value)
        };
        self.0.iter().all(has)
    }
}
