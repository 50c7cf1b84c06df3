// SPDX-License-Identifier: Apache-2.0

//! Health checks of load balancers: endpoints of a Service on this node (`spec.healthCheckNodePort`).
//! Answers are identical to kube-proxy's.

mod answer;
mod servers;
mod wanted;

pub use servers::HealthChecks;
pub use wanted::{HealthCheck, ServiceKey, wanted_by};
