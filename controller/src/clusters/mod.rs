// SPDX-License-Identifier: Apache-2.0

//! The source `clusters`: one source for each Cluster of the policy.

mod args;
mod contact;
mod metrics;
mod policy;
mod saved;
mod states;
mod status;
mod supervisor;

pub(crate) use args::ClustersArgs;
pub(crate) use contact::SourceContact;
pub(crate) use metrics::ClusterCollector;
pub(crate) use policy::resources;
pub(crate) use saved::{Decided, Saved, Saver};
pub(crate) use states::ClusterStates;
pub(crate) use status::StatusWriter;
pub(crate) use supervisor::{ClusterSources, Home, Members, Supervisor};
