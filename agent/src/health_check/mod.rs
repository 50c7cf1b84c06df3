//! The answers to load balancers that ask each node whether it has endpoints of a Service
//! (`spec.healthCheckNodePort`), byte for byte kube-proxy's.

mod answer;
mod servers;
mod wanted;

pub use servers::HealthChecks;
pub use wanted::{HealthCheck, ServiceKey, wanted_by};
