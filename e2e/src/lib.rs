//! What end-to-end tests and the demo stand on: the lanes a machine offers, a cluster of network
//! namespaces, real Kubernetes servers.

pub mod ask;
pub mod cluster;
pub mod conformance;
pub mod figure;
pub mod lane;
pub mod objects;
pub mod programs;
pub mod rig;
pub mod servers;
pub mod wait;
