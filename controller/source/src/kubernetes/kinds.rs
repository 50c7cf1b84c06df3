//! How each kind is asked for.

use std::fmt;

use crate::objects::{EndpointSlice, Manifest, Node, Pod, Service};

/// What is for another proxy, or headless, the API server need not even send.
const OURS: &str = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless";

/// A kind that can be watched.
pub(super) trait Watchable: Manifest + Clone + fmt::Debug + Send + 'static {
    const GROUP: &'static str;
    const VERSION: &'static str = "v1";
    const PLURAL: &'static str;
    const SELECTOR: Option<&'static str>;
    /// Whether metadata is all that we want of it.
    const METADATA_ONLY: bool = false;
}

impl Watchable for Service {
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "services";
    const SELECTOR: Option<&'static str> = Some(OURS);
}

impl Watchable for EndpointSlice {
    const GROUP: &'static str = "discovery.k8s.io";
    const PLURAL: &'static str = "endpointslices";
    const SELECTOR: Option<&'static str> = Some(OURS);
}

impl Watchable for Node {
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "nodes";
    const SELECTOR: Option<&'static str> = None;
}

impl Watchable for Pod {
    const GROUP: &'static str = "";
    const PLURAL: &'static str = "pods";
    // Annotations cannot be selected.
    const SELECTOR: Option<&'static str> = None;
    // Pods are many, and their spec and status are most of their bytes.
    const METADATA_ONLY: bool = true;
}
