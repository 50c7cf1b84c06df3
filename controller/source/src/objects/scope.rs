// SPDX-License-Identifier: Apache-2.0

//! The cluster of converted objects, and the label that selects the Services that are ours.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

/// Label with the name of the proxy that serves the object. Without it, the default proxy does.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Label of objects of a headless Service (any value).
const HEADLESS: &str = "service.kubernetes.io/headless";
/// Greatest length of a label's value.
const MAX_NAME: usize = 63;

/// The cluster of objects, and the proxy whose Services are ours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Name of the cluster.
    pub cluster: Arc<str>,
    /// Name of the proxy. `None`: the Services without the label are ours.
    pub proxy: Option<ProxyName>,
    /// Whether the cluster may be one of several that share Services: only then exports, namespaces and
    /// EndpointSlices of headless Services are ours.
    pub shares: bool,
}

impl Scope {
    /// The Services of the default proxy in this cluster.
    #[must_use]
    pub fn new(cluster: &Arc<str>) -> Self {
        let cluster = Arc::clone(cluster);
        Self {
            cluster,
            proxy: None,
            shares: false,
        }
    }

    /// Returns `true` if an object with these labels belongs to one of our Services.
    pub(super) fn selects(&self, labels: Option<&BTreeMap<String, Option<String>>>) -> bool {
        let is_headless = labels.is_some_and(|labels| labels.contains_key(HEADLESS));
        !is_headless && self.is_of_proxy(labels)
    }

    /// Returns `true` if an EndpointSlice with these labels is ours. Exported headless Services
    /// need theirs too.
    pub(super) fn selects_slice(&self, labels: Option<&BTreeMap<String, Option<String>>>) -> bool {
        match self.shares {
            true => self.is_of_proxy(labels),
            false => self.selects(labels),
        }
    }

    fn is_of_proxy(&self, labels: Option<&BTreeMap<String, Option<String>>>) -> bool {
        let name = labels.and_then(|labels| labels.get(PROXY_NAME));
        let name = name.map(|name| name.as_deref().unwrap_or_default());
        name == self.proxy.as_ref().map(ProxyName::as_str)
    }

    /// The label selector of the same objects, for the API server.
    #[cfg(feature = "kubernetes")]
    pub(crate) fn selector(&self) -> String {
        let of_proxy = match &self.proxy {
            None => format!("!{PROXY_NAME}"),
            Some(name) => format!("{PROXY_NAME}={}", name.as_str()),
        };
        match self.shares {
            true => of_proxy,
            false => format!("{of_proxy},!{HEADLESS}"),
        }
    }
}

/// Name of a proxy: a value of the label `service.kubernetes.io/service-proxy-name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyName(Arc<str>);

impl ProxyName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text that is no value of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected the value of a label: 1 to 63 letters, digits, '-', '_' and '.', the first and the \
     last a letter or digit"
)]
pub struct ProxyNameError;

impl FromStr for ProxyName {
    type Err = ProxyNameError;

    fn from_str(text: &str) -> Result<Self, ProxyNameError> {
        let bytes = text.as_bytes();
        let ends = bytes.first().into_iter().chain(bytes.last());
        let is_good = (1..=MAX_NAME).contains(&bytes.len())
            && ends.copied().all(|end| end.is_ascii_alphanumeric())
            && bytes
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte));
        is_good.then(|| Self(text.into())).ok_or(ProxyNameError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_values_of_labels() {
        let long = "a".repeat(MAX_NAME + 1);
        for good in ["portolan", "a", "A.b_c-1", &long[1..]] {
            assert_eq!(good.parse::<ProxyName>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a.", "a b", "a,b", "ä", &long] {
            assert_eq!(bad.parse::<ProxyName>(), Err(ProxyNameError), "{bad:?}");
        }
    }
}
