// SPDX-License-Identifier: Apache-2.0

//! Reconcilers that take over from a kube-proxy.

use std::future::Future;

use portolan_dataplane::{Dataplane, DataplaneError, KubeProxyObjects};
use portolan_model::NodeTable;
use portolan_plan::kube_proxy::Claim;
use portolan_reconcile::NftablesReconciler;
use portolan_reconcile::kube_proxy::{TakeoverProgress, TakeoverStart};

use crate::sync::Reconciler;

/// A reconciler that takes over from a kube-proxy.
pub(crate) trait TakesOver: Send {
    /// Looks at the kube-proxy's state before the first table, as [`Reconciler::begin_takeover`].
    fn begin(
        &mut self,
        table: &NodeTable,
        asked: bool,
        is_doubtful: impl Fn(&Claim) -> bool + Send,
    ) -> impl Future<Output = Result<TakeoverStart, DataplaneError>> + Send;

    /// Removes a piece of the kube-proxy's state, as [`Reconciler::continue_takeover`].
    fn proceed(&mut self) -> impl Future<Output = Result<TakeoverProgress, DataplaneError>> + Send;
}

impl<D: Dataplane + KubeProxyObjects> TakesOver for Reconciler<D> {
    async fn begin(
        &mut self,
        table: &NodeTable,
        asked: bool,
        is_doubtful: impl Fn(&Claim) -> bool + Send,
    ) -> Result<TakeoverStart, DataplaneError> {
        self.begin_takeover(table, asked, is_doubtful).await
    }

    async fn proceed(&mut self) -> Result<TakeoverProgress, DataplaneError> {
        self.continue_takeover().await
    }
}

impl TakesOver for NftablesReconciler {
    async fn begin(
        &mut self,
        table: &NodeTable,
        _asked: bool,
        is_doubtful: impl Fn(&Claim) -> bool + Send,
    ) -> Result<TakeoverStart, DataplaneError> {
        self.begin_takeover(table, is_doubtful).await
    }

    async fn proceed(&mut self) -> Result<TakeoverProgress, DataplaneError> {
        self.continue_takeover().await
    }
}
