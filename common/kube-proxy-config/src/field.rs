// SPDX-License-Identifier: Apache-2.0

//! A field of a KubeProxyConfiguration: its type, its flag, and its conversion.

use std::fmt;

use crate::fields::FIELDS;

/// Type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A truth value.
    Bool,
    /// An integer.
    Integer,
    /// A number.
    Number,
    /// A text.
    Text,
    /// A duration as Go writes it, such as `1h30m0s`.
    Duration,
    /// A list of texts.
    List,
    /// A map of names to values.
    Map,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bool => "true or false",
            Self::Integer => "an integer",
            Self::Number => "a number",
            Self::Text => "a text",
            Self::Duration => "a duration such as 1m30s",
            Self::List => "a list of texts",
            Self::Map => "a map",
        })
    }
}

/// Modes of kube-proxy that read a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Modes {
    /// All modes.
    All,
    /// iptables and ipvs.
    Iptables,
    /// ipvs.
    Ipvs,
    /// nftables.
    Nftables,
}

/// Conversion of a field to values of the chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Becomes {
    /// The value at this path of the chart, with the chart's default.
    Value(&'static str, &'static str),
    /// A rule of its own, in `becomes.rs`.
    Rule,
    /// Nothing is needed: the reason.
    Always(&'static str),
    /// Nothing, for this reason.
    Nothing(&'static str),
}

/// A field.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its path.
    pub path: &'static str,
    /// Its type.
    pub kind: Kind,
    /// kube-proxy's default as a text; a field with this value counts as absent.
    pub default: &'static str,
    /// Whether zero, false and empty values count as given: the type has a pointer in Go.
    pub zero_counts: bool,
    /// The modes that read it.
    pub modes: Modes,
    /// kube-proxy's flag of the same meaning, without dashes.
    pub flag: &'static str,
    /// Its conversion.
    pub becomes: Becomes,
}

impl Field {
    /// The field at this path.
    #[must_use]
    pub fn at(path: &str) -> Option<&'static Self> {
        FIELDS.iter().find(|field| field.path == path)
    }

    pub(crate) const fn zero(mut self) -> Self {
        self.zero_counts = true;
        self
    }

    pub(crate) const fn read_in(mut self, modes: Modes) -> Self {
        self.modes = modes;
        self
    }
}

pub(crate) const fn field(
    path: &'static str,
    kind: Kind,
    default: &'static str,
    flag: &'static str,
    becomes: Becomes,
) -> Field {
    Field {
        path,
        kind,
        default,
        zero_counts: false,
        modes: Modes::All,
        flag,
        becomes,
    }
}
