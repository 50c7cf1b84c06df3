// SPDX-License-Identifier: Apache-2.0

//! Takeover from a kube-proxy: before the first table is programmed, and after it.

use std::time::Duration;

use portolan_dataplane::DataplaneError;
use portolan_model::NodeTable;
use portolan_plan::kube_proxy::Claim;
use portolan_reconcile::kube_proxy::{TakeoverProgress, TakeoverStart};
use tokio::time::Instant;

use super::running::{Running, Search};
use super::takes_over::TakesOver;
use crate::subscribe::GuardConfig;

/// A table that lacks up to this many of a kube-proxy's virtual servers is doubted only if it has none
/// of them.
const FEW: usize = 100;

/// Configuration of a takeover.
#[derive(Debug, Clone, Copy)]
pub struct TakeoverConfig {
    /// Whether a takeover was requested. One that has begun continues in any case.
    pub asked: bool,
    /// The share of the kube-proxy's virtual servers, in percent, that a table may lack.
    pub percent: u8,
    /// For how long a table is doubted; `None` for ever.
    pub patience: Option<Duration>,
    /// Places where a running kube-proxy is looked for, which a takeover waits for.
    pub search: Search,
}

/// A table that lacks more than half may be that of a controller which has just started.
const PERCENT: u8 = 50;
const PATIENCE: Duration = Duration::from_secs(30);

impl Default for TakeoverConfig {
    fn default() -> Self {
        Self::new(false, GuardConfig::default())
    }
}

impl TakeoverConfig {
    /// Doubts no table where the deletion guard is off, and none for longer than the guard holds
    /// deletions. Nothing is programmed meanwhile, so the patience is shorter than the guard's.
    #[must_use]
    pub fn new(asked: bool, guard: GuardConfig) -> Self {
        let percent = if guard.is_off() { 100 } else { PERCENT };
        Self {
            asked,
            percent,
            patience: guard.time.map(|time| time.min(PATIENCE)),
            search: Search::default(),
        }
    }
}

/// Reason a table is not programmed yet.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// The kernel cannot be read or written.
    #[error("takeover: {0}")]
    Dataplane(#[from] DataplaneError),
    /// The table lacks too many of the kube-proxy's addresses and ports.
    #[error(
        "takeover: of the {claimed} addresses and ports of kube-proxy the table lacks {lacking}, which \
         would be deleted: it is not programmed {}; see --deletion-guard-percent",
        duration_of_doubt(*doubted_for)
    )]
    Doubtful {
        /// Number of addresses and ports that the kube-proxy has left.
        claimed: usize,
        /// Number of them that the table lacks.
        lacking: usize,
        /// Time that such a table is doubted; `None` for as long as it lacks so many.
        doubted_for: Option<Duration>,
    },
}

fn duration_of_doubt(duration: Option<Duration>) -> String {
    match duration {
        Some(duration) => format!("for {} s", duration.as_secs()),
        None => "while it lacks them".to_owned(),
    }
}

/// Progress of a takeover.
#[derive(Debug)]
pub struct Takeover {
    config: TakeoverConfig,
    phase: Phase,
    /// The running kube-proxy that was logged last.
    running: Option<Running>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Before the first table, with the time since which tables are doubted.
    Before(Option<Instant>),
    /// The kube-proxy's virtual servers are claimed, and leftovers remain.
    Begun,
    Over,
}

impl Takeover {
    pub(crate) fn new(config: TakeoverConfig) -> Self {
        let phase = Phase::Before(None);
        Self {
            config,
            phase,
            running: None,
        }
    }

    /// Returns `true` if leftovers remain.
    pub(crate) fn is_begun(&self) -> bool {
        self.phase == Phase::Begun
    }

    /// Returns `true` if nothing of a kube-proxy is left to take over from.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Returns `true` if a takeover was asked for or has begun, and is not over.
    pub(crate) fn is_pending(&self) -> bool {
        match self.phase {
            Phase::Before(_) => self.config.asked,
            Phase::Begun => true,
            Phase::Over => false,
        }
    }

    /// Returns `true` if a kube-proxy still runs, so that nothing may be programmed. It is logged
    /// once.
    pub(crate) async fn waits(&mut self) -> bool {
        if !self.config.asked || !matches!(self.phase, Phase::Before(_)) {
            return false;
        }
        let found = self.config.search.find().await;
        match &found {
            Some(running) if self.running.is_none() => {
                tracing::warn!("takeover: {running}: nothing is programmed until it has ended");
            }
            None if self.running.is_some() => {
                tracing::info!("takeover: kube-proxy has ended");
            }
            _ => {}
        }
        self.running = found;
        self.running.is_some()
    }

    /// Claims the kube-proxy's virtual servers before a table is programmed. After an error the table must not be programmed.
    pub(crate) async fn begin(
        &mut self,
        reconciler: &mut impl TakesOver,
        table: &NodeTable,
    ) -> Result<(), TakeoverError> {
        let Phase::Before(doubted_since) = self.phase else {
            return Ok(());
        };
        let is_doubted = |claim: &Claim| self.doubts(claim, doubted_since);
        let begun = reconciler.begin(table, self.config.asked, is_doubted).await;
        match begun? {
            TakeoverStart::Nothing => self.phase = Phase::Over,
            TakeoverStart::Begun(claim) => {
                tracing::info!(
                    adopted = claim.wanted.len(),
                    to_delete = claim.unwanted.len(),
                    left_alone = claim.foreign.len(),
                    to_replace_rules_of = claim.wanted_rules.len(),
                    "takeover from kube-proxy has begun"
                );
                self.phase = Phase::Begun;
            }
            TakeoverStart::Doubtful(claim) => {
                self.phase = Phase::Before(doubted_since.or_else(|| Some(Instant::now())));
                return Err(TakeoverError::Doubtful {
                    claimed: claim.len(),
                    lacking: claim.lacking(),
                    doubted_for: self.config.patience,
                });
            }
        }
        Ok(())
    }

    /// Returns `true` if a table lacks so many virtual servers that it may be wrong, and is too
    /// recent to be trusted.
    fn doubts(&self, claim: &Claim, since: Option<Instant>) -> bool {
        let TakeoverConfig {
            percent, patience, ..
        } = self.config;
        let lacking = claim.lacking();
        let too_much = lacking * 100 > usize::from(percent) * claim.len();
        let is_over = |patience: Duration| since.is_some_and(|since| since.elapsed() >= patience);
        too_much && (claim.kept() == 0 || lacking > FEW) && !patience.is_some_and(is_over)
    }

    /// Removes a piece of the leftovers after a reconciliation; returns whether to call it again at once.
    pub(crate) async fn proceed(&mut self, reconciler: &mut impl TakesOver) -> bool {
        match reconciler.proceed().await {
            Ok(TakeoverProgress::More) => return true,
            Ok(TakeoverProgress::Waiting { addresses }) => {
                tracing::warn!(
                    addresses,
                    "takeover: some addresses of kube-proxy cannot be deleted yet"
                );
            }
            Ok(TakeoverProgress::Unserved { frontends }) => {
                tracing::warn!(
                    frontends,
                    "takeover: the rules of kube-proxy stay, since some of its addresses and ports are not \
                     served yet"
                );
            }
            Ok(TakeoverProgress::Done) => {
                tracing::info!("takeover from kube-proxy is complete");
                self.phase = Phase::Over;
            }
            Err(error) => tracing::warn!(%error, "takeover: leftovers cannot be removed yet"),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::Protocol;
    use portolan_model::ipvs::VirtualServerKey;

    use super::super::running::testing::fake_kube_proxy;
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
    async fn table_that_lacks_too_much_is_doubted_for_a_while() {
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

    #[tokio::test]
    async fn takeover_waits_for_the_end_of_a_kube_proxy() {
        let (address, server) = fake_kube_proxy().await;
        let config = |asked| TakeoverConfig {
            search: Search {
                metrics: Some(address),
                ..Search::default()
            },
            ..TakeoverConfig::new(asked, GuardConfig::default())
        };
        let mut unasked = Takeover::new(config(false));
        assert!(!unasked.waits().await && !unasked.is_pending());
        let mut takeover = Takeover::new(config(true));
        assert!(takeover.waits().await && takeover.is_pending());
        server.abort();
        let _ = server.await;
        assert!(!takeover.waits().await && takeover.is_pending());
        takeover.phase = Phase::Over;
        assert!(!takeover.is_pending());
    }

    #[test]
    fn limit_of_a_hundred_percent_doubts_nothing() {
        let config = TakeoverConfig::new(true, GuardConfig::OFF);
        let takeover = Takeover::new(config);
        assert!(!takeover.doubts(&claim(0, 500), None));
    }
}
