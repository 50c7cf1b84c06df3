//! When to take over from a kube-proxy: before the first table is programmed, and after it.

use std::time::Duration;

use portolan_dataplane::{Dataplane, KubeProxyObjects};
use portolan_model::NodeTable;
use portolan_plan::kube_proxy::Claim;
use portolan_reconcile::kube_proxy::{TakeoverProgress, TakeoverStart};
use tokio::time::Instant;

use crate::subscribe::HoldConfig;
use crate::sync::Reconciler;

/// A table that lacks no more than so many of a kube-proxy's virtual servers is not doubted for
/// their share, only if it has none of them.
const FEW: usize = 100;

/// Whether to take over.
#[derive(Debug, Clone, Copy, Default)]
pub struct TakeoverConfig {
    /// Whether that was asked for. One that has begun is gone on with in any case.
    pub asked: bool,
    /// How much a table may lack of what the kube-proxy had, and for how long it is doubted.
    pub hold: HoldConfig,
}

/// How far it is.
#[derive(Debug)]
pub(crate) struct Takeover {
    config: TakeoverConfig,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No table was programmed yet. Since when tables are doubted, if they are.
    Before(Option<Instant>),
    /// Something of the kube-proxy's is left.
    Begun,
    Over,
}

impl Takeover {
    pub(crate) fn new(config: TakeoverConfig) -> Self {
        let phase = Phase::Before(None);
        Self { config, phase }
    }

    /// Whether something is left to take over.
    pub(crate) fn is_pending(&self) -> bool {
        self.phase == Phase::Begun
    }

    /// To be called before a table is programmed; an error says why it must not be.
    pub(crate) async fn begin<D: Dataplane + KubeProxyObjects>(
        &mut self,
        reconciler: &mut Reconciler<D>,
        table: &NodeTable,
    ) -> Result<(), String> {
        let Phase::Before(doubted_since) = self.phase else {
            return Ok(());
        };
        let is_doubted = |claim: &Claim| self.doubts(claim, doubted_since);
        let begun = reconciler
            .begin_takeover(table, self.config.asked, is_doubted)
            .await;
        match begun.map_err(|error| format!("takeover: {error}"))? {
            TakeoverStart::Nothing => self.phase = Phase::Over,
            TakeoverStart::Begun(claim) => {
                tracing::info!(
                    adopted = claim.wanted.len(),
                    to_delete = claim.unwanted.len(),
                    left_alone = claim.foreign.len(),
                    "takes over from kube-proxy"
                );
                self.phase = Phase::Begun;
            }
            TakeoverStart::Doubtful(claim) => {
                self.phase = Phase::Before(doubted_since.or_else(|| Some(Instant::now())));
                return Err(format!(
                    "takeover: of the {} virtual servers of kube-proxy the table lacks {}, which \
                     would be deleted: it is not programmed for {}; see --hold-deletions-above",
                    claim.len(),
                    claim.unwanted.len(),
                    self.patience()
                ));
            }
        }
        Ok(())
    }

    fn patience(&self) -> String {
        match self.config.hold.confirmed_after {
            Some(time) => format!("{} s", time.as_secs()),
            None => "as long as that is so".to_owned(),
        }
    }

    /// Whether a table lacks so much that it may be wrong, and was not there for long enough.
    fn doubts(&self, claim: &Claim, since: Option<Instant>) -> bool {
        let HoldConfig {
            above_percent,
            confirmed_after,
        } = self.config.hold;
        let lacking = claim.unwanted.len();
        let too_much = lacking * 100 > usize::from(above_percent) * claim.len();
        let is_over = |patience: Duration| since.is_some_and(|since| since.elapsed() >= patience);
        too_much
            && (claim.wanted.is_empty() || lacking > FEW)
            && !confirmed_after.is_some_and(is_over)
    }

    /// To be called after a reconciliation, and again while it says so.
    pub(crate) async fn proceed<D: Dataplane + KubeProxyObjects>(
        &mut self,
        reconciler: &mut Reconciler<D>,
    ) -> bool {
        match reconciler.continue_takeover().await {
            Ok(TakeoverProgress::More) => return true,
            Ok(TakeoverProgress::Waiting { addresses }) => {
                tracing::warn!(
                    addresses,
                    "takeover: not all of kube-proxy's can be taken away yet"
                );
            }
            Ok(TakeoverProgress::Done) => {
                tracing::info!("taken over from kube-proxy: nothing of its own is left");
                self.phase = Phase::Over;
            }
            Err(error) => tracing::warn!(%error, "takeover: something cannot be taken away yet"),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::Protocol;
    use portolan_model::ipvs::VirtualServerKey;

    use super::*;

    fn claim(wanted: u16, unwanted: u16) -> Claim {
        let key = |port| VirtualServerKey::new(Protocol::Tcp, [10, 96, 0, 1].into(), port);
        Claim {
            wanted: (0..wanted).map(key).collect(),
            unwanted: (wanted..wanted + unwanted).map(key).collect(),
            ..Claim::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_table_that_lacks_too_much_is_doubted_for_a_while() {
        let takeover = Takeover::new(TakeoverConfig::default());
        for (wanted, unwanted, doubted) in [
            (0, 0, false),
            (0, 1, true),
            (1, 100, false),
            (1, 101, true),
            (101, 101, false),
            (100, 101, true),
        ] {
            let claim = claim(wanted, unwanted);
            assert_eq!(
                takeover.doubts(&claim, None),
                doubted,
                "{wanted} {unwanted}"
            );
        }
        let since = Instant::now();
        tokio::time::advance(Duration::from_secs(29)).await;
        assert!(takeover.doubts(&claim(0, 1), Some(since)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!takeover.doubts(&claim(0, 1), Some(since)));
    }

    #[test]
    fn a_hundred_percent_doubts_nothing() {
        let hold = HoldConfig {
            above_percent: 100,
            confirmed_after: None,
        };
        let takeover = Takeover::new(TakeoverConfig { asked: true, hold });
        assert!(!takeover.doubts(&claim(0, 500), None));
    }
}
