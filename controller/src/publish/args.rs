// SPDX-License-Identifier: Apache-2.0

//! Flags of the publication.

use std::path::PathBuf;

use crate::object_name::ObjectName;

/// Flags of the publication for agents.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Publication")]
pub(crate) struct PublishArgs {
    /// ConfigMap that receives what agents need to find controllers: the key ca.crt (authorities of the
    /// controllers' certificates) and the key controllers (one HOST:PORT a line). It must exist. One
    /// controller writes. Needs permission to get and update the ConfigMap and the Lease, and to list
    /// EndpointSlices.
    #[arg(
        long,
        env = "PORTOLAN_PUBLISH",
        value_name = "NAMESPACE/CONFIGMAP",
        requires = "publish_service"
    )]
    pub(crate) publish: Option<ObjectName>,

    /// Service of the controllers, whose EndpointSlices have the published addresses.
    #[arg(long, env = "PORTOLAN_PUBLISH_SERVICE", value_name = "NAMESPACE/NAME")]
    pub(crate) publish_service: Option<ObjectName>,

    /// Name of the port for agents in --publish-service.
    #[arg(
        long,
        env = "PORTOLAN_PUBLISH_PORT",
        value_name = "NAME",
        default_value = "agents"
    )]
    pub(crate) publish_port: String,

    /// File with the published authorities, in PEM. Default: those of --tls-self-managed, else ca.crt of
    /// --tls-dir; without a file the key ca.crt of the ConfigMap is left alone.
    #[arg(
        long,
        env = "PORTOLAN_PUBLISH_CA",
        value_name = "FILE",
        requires = "publish",
        conflicts_with = "tls_self_managed"
    )]
    pub(crate) publish_ca: Option<PathBuf>,

    /// Lease that elects the one controller that publishes. Default: the Lease with the namespace and
    /// name of the ConfigMap. It is created if it does not exist.
    #[arg(
        long,
        env = "PORTOLAN_PUBLISH_LEASE",
        value_name = "NAMESPACE/NAME",
        requires = "publish"
    )]
    pub(crate) publish_lease: Option<ObjectName>,
}
