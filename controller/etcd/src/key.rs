// SPDX-License-Identifier: Apache-2.0

//! Keys of objects: `PREFIX/v1alpha1/{loadbalancers/NAMESPACE/NAME, directors/NAME, nodes/NAME}`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The version of the keys and of the objects.
const VERSION: &str = "v1alpha1";

/// The beginning of all keys: it begins with `/`, ends with no `/` and has no empty part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix(Arc<str>);

/// A text that cannot be the beginning of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected /PART or /PART/PART..., without an empty part")]
pub struct PrefixError;

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let parts = text.strip_prefix('/').ok_or(PrefixError)?;
        let is_good = parts.split('/').all(|part| !part.is_empty());
        is_good.then(|| Self(text.into())).ok_or(PrefixError)
    }
}

/// Keys from `start` to before `end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// The first key.
    pub start: Vec<u8>,
    /// The first key that is beyond it.
    pub end: Vec<u8>,
}

/// The object that a key is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// A LoadBalancer.
    LoadBalancer {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
    },
    /// A Director.
    Director(String),
    /// A Node.
    Node(String),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LoadBalancer { namespace, name } => write!(f, "LoadBalancer {namespace}/{name}"),
            Self::Director(name) => write!(f, "Director {name}"),
            Self::Node(name) => write!(f, "Node {name}"),
        }
    }
}

/// A key that is no object's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "is the key of no object: expected {0}/{VERSION}/loadbalancers/NAMESPACE/NAME, \
     {0}/{VERSION}/directors/NAME or {0}/{VERSION}/nodes/NAME"
)]
pub struct KeyError(Arc<str>);

impl Prefix {
    /// The keys of all objects.
    #[must_use]
    pub fn objects(&self) -> Range {
        // '0' is the character after '/'.
        let key = |last: char| format!("{}/{VERSION}{last}", self.0).into_bytes();
        Range {
            start: key('/'),
            end: key('0'),
        }
    }

    /// The key of an object.
    #[must_use]
    pub fn key(&self, name: &Name) -> String {
        let prefix = &self.0;
        match name {
            Name::LoadBalancer { namespace, name } => {
                format!("{prefix}/{VERSION}/loadbalancers/{namespace}/{name}")
            }
            Name::Director(name) => format!("{prefix}/{VERSION}/directors/{name}"),
            Name::Node(name) => format!("{prefix}/{VERSION}/nodes/{name}"),
        }
    }

    /// The object of a key.
    ///
    /// # Errors
    /// The key is no object's.
    pub fn name(&self, key: &[u8]) -> Result<Name, KeyError> {
        let text = str::from_utf8(key).unwrap_or_default();
        let below = text.strip_prefix(&*self.0);
        let below = below.and_then(|text| text.strip_prefix('/'));
        let parts: Vec<_> = below.unwrap_or_default().split('/').collect();
        let is_whole = parts.iter().all(|part| !part.is_empty());
        match parts[..] {
            [VERSION, "loadbalancers", namespace, name] if is_whole => Ok(Name::LoadBalancer {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            [VERSION, "directors", name] if is_whole => Ok(Name::Director(name.to_owned())),
            [VERSION, "nodes", name] if is_whole => Ok(Name::Node(name.to_owned())),
            _ => Err(KeyError(Arc::clone(&self.0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix() -> Prefix {
        "/portolan".parse().unwrap()
    }

    #[test]
    fn the_key_of_an_object_leads_back_to_it_and_lies_in_the_range() {
        let range = prefix().objects();
        for name in [
            Name::LoadBalancer {
                namespace: "default".to_owned(),
                name: "web".to_owned(),
            },
            Name::Director("lb-1".to_owned()),
            Name::Node("lb-1.example.org".to_owned()),
        ] {
            let key = prefix().key(&name).into_bytes();
            assert_eq!(prefix().name(&key), Ok(name));
            assert!(range.start <= key && key < range.end);
        }
    }

    #[test]
    fn other_keys_are_no_objects() {
        for key in [
            "",
            "/portolan",
            "/portolan/v1alpha1/",
            "/portolan/v1alpha1/loadbalancers/web",
            "/portolan/v1alpha1/loadbalancers//web",
            "/portolan/v1alpha1/loadbalancers/a/b/c",
            "/portolan/v1alpha1/nodes/",
            "/portolan/v1alpha1/pods/a",
            "/portolan/v1/nodes/a",
            "/portolanx/v1alpha1/nodes/a",
        ] {
            let error = prefix().name(key.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("/portolan/v1alpha1/nodes/NAME"), "{key}");
        }
        assert!(prefix().name(b"/portolan/v1alpha1/nodes/\xff").is_err());
        // Keys beside the objects, such as the state of directors.
        let range = prefix().objects();
        for beside in [
            "/portolan/status/a",
            "/portolan/v1alpha10",
            "/portolan/v1alpha2/a",
        ] {
            let key = beside.as_bytes().to_vec();
            assert!(key < range.start || key >= range.end, "{beside}");
        }
    }

    #[test]
    fn prefixes_have_no_empty_part() {
        for bad in ["", "/", "portolan", "/a/", "//a", "/a//b"] {
            assert_eq!(bad.parse::<Prefix>(), Err(PrefixError), "{bad:?}");
        }
        assert!("/a/b".parse::<Prefix>().is_ok());
    }
}
