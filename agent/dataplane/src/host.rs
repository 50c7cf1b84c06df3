// SPDX-License-Identifier: Apache-2.0

//! Interface to the settings of a director's host.

use std::future::Future;

use portolan_plan::VipBinding;
use portolan_plan::host::{HostDesired, HostState, HostStep, Owned};

use crate::DataplaneError;

/// A kernel whose settings can be observed and changed.
pub trait HostPlane: Send {
    /// Reads the settings that a desired state names, and what may be ours.
    fn observe_host(
        &mut self,
        desired: &HostDesired,
        owned: &Owned,
    ) -> impl Future<Output = Result<HostState, DataplaneError>> + Send;

    /// Takes steps in order; a failed one does not stop the others. Returns the failed ones with their reasons.
    fn apply_host(
        &mut self,
        steps: &[HostStep],
    ) -> impl Future<Output = Vec<(HostStep, String)>> + Send;

    /// Binds virtual addresses in this way from now on. Those that are bound in the other way are observed as
    /// wrong, so that the next plan binds them again.
    fn bind_by(&mut self, binding: VipBinding);
}
