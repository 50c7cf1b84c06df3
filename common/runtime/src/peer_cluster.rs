// SPDX-License-Identifier: Apache-2.0

//! The cluster of a request's sender, between the layer that authenticates it and the service behind.

use std::sync::Arc;

/// The name of the cluster that the sender's credential names. An extension of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCluster(pub Arc<str>);
