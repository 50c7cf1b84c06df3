// SPDX-License-Identifier: Apache-2.0

//! Names of namespaced objects in flags.

use std::fmt;
use std::str::FromStr;

/// An object by its namespace and name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// A text that is no name of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected NAMESPACE/NAME in lower-case letters, digits, '-' and '.'")]
pub(crate) struct ObjectNameError;

impl FromStr for ObjectName {
    type Err = ObjectNameError;

    fn from_str(text: &str) -> Result<Self, ObjectNameError> {
        let is_good = |part: &str| {
            let is_allowed = |byte: &u8| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(byte)
            };
            (1..=253).contains(&part.len()) && part.as_bytes().iter().all(is_allowed)
        };
        let (namespace, name) = text.split_once('/').ok_or(ObjectNameError)?;
        let found = (is_good(namespace) && is_good(name)).then(|| Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        });
        found.ok_or(ObjectNameError)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_namespace() {
        let name: ObjectName = "kube-system/portolan.1".parse().unwrap();
        assert_eq!(name.to_string(), "kube-system/portolan.1");
        for bad in ["", "a", "/a", "a/", "a/b/c", "a/B", "a/b c"] {
            assert_eq!(bad.parse::<ObjectName>(), Err(ObjectNameError), "{bad:?}");
        }
    }
}
