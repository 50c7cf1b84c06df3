// SPDX-License-Identifier: Apache-2.0

//! Selectors of clusters, nodes and Services.

use std::collections::BTreeMap;

use portolan_director::read::Path;

use crate::faults::Faults;
use crate::spec::{ExpressionSpec, Operator, SelectorSpec, ServicesSpec};
use crate::{Fault, PolicyError};

/// Labels or properties by key.
pub type Labels = BTreeMap<String, String>;

/// A name, or the beginning of names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// This name.
    Exact(String),
    /// All names with this beginning.
    Prefix(String),
}

impl Pattern {
    /// Returns `true` if it stands for a name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Prefix(prefix) => name.starts_with(prefix.as_str()),
        }
    }

    fn is_all(&self) -> bool {
        matches!(self, Self::Prefix(prefix) if prefix.is_empty())
    }

    fn text(&self) -> String {
        match self {
            Self::Exact(exact) => exact.clone(),
            Self::Prefix(prefix) => format!("{prefix}*"),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let prefix = text.strip_suffix('*');
        let plain = prefix.unwrap_or(text);
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        let fits = plain.chars().all(allowed) && text.len() <= 253 && !text.is_empty();
        fits.then(|| match prefix {
            Some(prefix) => Self::Prefix(prefix.to_owned()),
            None => Self::Exact(text.to_owned()),
        })
    }
}

/// Patterns, of which one must match. Without any, or with `*` among them, they restrict nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Patterns(Vec<Pattern>);

impl Patterns {
    /// Returns `true` if a name is among them.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        !self.restricts() || self.0.iter().any(|pattern| pattern.matches(name))
    }

    /// Returns `true` if there is a name that does not match.
    #[must_use]
    pub fn restricts(&self) -> bool {
        !self.0.is_empty() && !self.0.iter().any(Pattern::is_all)
    }

    /// The names among them that stand for themselves alone.
    pub fn exact(&self) -> impl Iterator<Item = (usize, &str)> {
        let numbered = self.0.iter().enumerate();
        numbered.filter_map(|(index, pattern)| match pattern {
            Pattern::Exact(name) => Some((index, name.as_str())),
            Pattern::Prefix(_) => None,
        })
    }

    fn new(texts: &[String], path: &Path, faults: &mut Faults) -> Self {
        let parsed = texts.iter().enumerate().filter_map(|(index, text)| {
            let pattern = Pattern::parse(text);
            if pattern.is_none() {
                faults.add(&path.item(index), PolicyError::NamePattern(text.clone()));
            }
            pattern
        });
        Self(parsed.collect())
    }
}

/// A requirement of one label or property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

impl Requirement {
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let is_among = || value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            Operator::In => is_among(),
            Operator::NotIn => !is_among(),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

/// Specificity of a selector, the widest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Closeness {
    /// It selects all.
    All,
    /// By namespace; of Services only.
    Namespace,
    /// By labels or properties.
    Selector,
    /// By name.
    Names,
}

/// Selects clusters or nodes. All its parts must hold; an empty one selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    names: Patterns,
    requirements: Vec<Requirement>,
}

impl Selector {
    /// Returns `true` if it selects what has this name and these labels and properties.
    #[must_use]
    pub fn selects(&self, name: &str, labels: &Labels) -> bool {
        self.names.matches(name) && self.requirements.iter().all(|one| one.holds(labels))
    }

    /// Returns the specificity of the selector.
    #[must_use]
    pub fn closeness(&self) -> Closeness {
        if self.names.restricts() {
            Closeness::Names
        } else if self.requirements.is_empty() {
            Closeness::All
        } else {
            Closeness::Selector
        }
    }

    /// Its names.
    #[must_use]
    pub fn names(&self) -> &Patterns {
        &self.names
    }

    /// The selector that a spec describes.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn of(spec: &SelectorSpec) -> Result<Self, Vec<Fault>> {
        let mut faults = Faults::default();
        let selector = Self::new(spec, &Path::default(), &mut faults);
        faults.into_result(selector)
    }

    /// A spec that describes it: [`Self::of`] gives this selector again.
    #[must_use]
    pub fn to_spec(&self) -> SelectorSpec {
        let expressions = self.requirements.iter().map(|one| ExpressionSpec {
            key: one.key.clone(),
            operator: one.operator,
            values: one.values.clone(),
        });
        SelectorSpec {
            names: self.names.0.iter().map(Pattern::text).collect(),
            match_labels: BTreeMap::new(),
            match_expressions: expressions.collect(),
        }
    }

    /// The selector that a field spells.
    pub(crate) fn new(spec: &SelectorSpec, path: &Path, faults: &mut Faults) -> Self {
        let names = Patterns::new(&spec.names, &path.field("names"), faults);
        let labels_path = path.field("matchLabels");
        let mut requirements = Vec::new();
        for (key, value) in &spec.match_labels {
            check_key(key, &labels_path.field(key), faults);
            requirements.push(Requirement {
                key: key.clone(),
                operator: Operator::In,
                values: vec![value.clone()],
            });
        }
        for (index, expression) in spec.match_expressions.iter().enumerate() {
            let path = path.field("matchExpressions").item(index);
            requirements.push(requirement(expression, &path, faults));
        }
        Self {
            names,
            requirements,
        }
    }
}

fn requirement(spec: &ExpressionSpec, path: &Path, faults: &mut Faults) -> Requirement {
    check_key(&spec.key, &path.field("key"), faults);
    let count = spec.values.len();
    let (operator, fits, expected) = match spec.operator {
        Operator::In => ("In", count > 0, "at least one"),
        Operator::NotIn => ("NotIn", count > 0, "at least one"),
        Operator::Exists => ("Exists", count == 0, "none"),
        Operator::DoesNotExist => ("DoesNotExist", count == 0, "none"),
    };
    if !fits {
        let error = PolicyError::OperatorValues {
            operator,
            count,
            expected,
        };
        faults.add(&path.field("values"), error);
    }
    Requirement {
        key: spec.key.clone(),
        operator: spec.operator,
        values: spec.values.clone(),
    }
}

/// The keys of labels, and the names of properties: those have no `/`, and may be longer.
pub(crate) fn check_key(key: &str, path: &Path, faults: &mut Faults) {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let part = |text: &str| {
        is_end(text.chars().next()) && is_end(text.chars().last()) && text.chars().all(is_inner)
    };
    let fits = match key.split_once('/') {
        Some((prefix, name)) => part(prefix) && part(name) && prefix.len() <= 253,
        None => part(key),
    };
    if !fits || key.len() > 317 {
        faults.add(path, PolicyError::LabelKey(key.to_owned()));
    }
}

/// Selects Services. All its parts must hold; an empty one selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Services {
    namespaces: Patterns,
    names: Patterns,
    labels: Selector,
}

impl Services {
    /// Returns `true` if it selects a Service.
    #[must_use]
    pub fn selects(&self, service: &ServiceFacts<'_>) -> bool {
        self.namespaces.matches(service.namespace)
            && self.names.matches(service.name)
            && self.labels.selects("", service.labels)
    }

    /// Returns the specificity of the selector: names before labels before namespaces before all.
    #[must_use]
    pub fn closeness(&self) -> Closeness {
        if self.names.restricts() {
            Closeness::Names
        } else if self.labels.closeness() != Closeness::All {
            Closeness::Selector
        } else if self.namespaces.restricts() {
            Closeness::Namespace
        } else {
            Closeness::All
        }
    }

    pub(crate) fn new(spec: &ServicesSpec, path: &Path, faults: &mut Faults) -> Self {
        let labels_path = path.field("selector");
        if !spec.selector.names.is_empty() {
            faults.add(&labels_path.field("names"), PolicyError::NamesOfServices);
        }
        Self {
            namespaces: Patterns::new(&spec.namespaces, &path.field("namespaces"), faults),
            names: Patterns::new(&spec.names, &path.field("names"), faults),
            labels: Selector::new(&spec.selector, &labels_path, faults),
        }
    }
}

/// Facts about a Service that selectors read.
#[derive(Debug, Clone, Copy)]
pub struct ServiceFacts<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a Labels,
}

/// Facts about a cluster that selectors read.
#[derive(Debug, Clone, Copy)]
pub struct ClusterFacts<'a> {
    /// The name of the Cluster object.
    pub name: &'a str,
    /// Its labels and properties together ([`Cluster::labels`](crate::Cluster::labels)).
    pub labels: &'a Labels,
}

impl Selector {
    /// Returns `true` if it selects a cluster.
    #[must_use]
    pub fn selects_cluster(&self, cluster: &ClusterFacts<'_>) -> bool {
        self.selects(cluster.name, cluster.labels)
    }
}

#[cfg(test)]
mod tests;
