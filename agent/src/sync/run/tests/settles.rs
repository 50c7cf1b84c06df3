// SPDX-License-Identifier: Apache-2.0

//! Requests of the loop to an engine that has more to do after a while, and that can prove its state.

use portolan_plan::host::Host;
use portolan_reconcile::HostOutcome;

use super::*;
use crate::sync::Counts;

/// An engine that notes what it is asked for. A second after each reconciliation it has more to do.
#[derive(Default)]
struct Noting {
    asked: Arc<std::sync::Mutex<Vec<&'static str>>>,
    is_new: bool,
    settles_at: Option<std::time::Instant>,
}

impl Noting {
    fn note(&self, what: &'static str) {
        self.asked.lock().unwrap().push(what);
    }
}

impl Engine for Noting {
    async fn glance(&mut self) -> Result<Option<String>, DataplaneError> {
        Ok(None)
    }

    async fn refresh_facts(&mut self) -> Result<bool, DataplaneError> {
        Ok(false)
    }

    fn facts(&self) -> Option<&NodeFacts> {
        None
    }

    fn forget(&mut self) {
        self.note("forget");
    }

    async fn forget_unproven(&mut self) {
        self.note("forget unproven");
    }

    async fn reconcile(&mut self, _: &Arc<NodeTable>, _: bool) -> Result<Outcome, DataplaneError> {
        self.note("reconcile");
        self.is_new = true;
        Ok(Outcome::default())
    }

    async fn settle(&mut self) -> Result<(), DataplaneError> {
        self.note("settle");
        let then = (Instant::now() + Duration::from_secs(1)).into_std();
        self.settles_at = std::mem::take(&mut self.is_new).then_some(then);
        Ok(())
    }

    fn settles_at(&self) -> Option<std::time::Instant> {
        self.settles_at
    }

    async fn forget_stale_flows(&mut self, _: &NodeTable) -> Result<Option<usize>, DataplaneError> {
        self.note("flows");
        Ok(None)
    }

    fn counts(&mut self) -> Option<Counts> {
        None
    }

    fn is_certain(&mut self) -> bool {
        true
    }

    fn set_host(&mut self, _: Option<Arc<Host>>, _: Owned) {}

    async fn finish_host(&mut self, _: &NodeTable) -> HostOutcome {
        HostOutcome::default()
    }
}

#[tokio::test(start_paused = true)]
async fn clients_are_settled_before_flows_and_both_again_when_the_engine_says() {
    let engine = Noting::default();
    let asked = Arc::clone(&engine.asked);
    let asked = || std::mem::take(&mut *asked.lock().unwrap());
    let (kernel, state) = (Shared::default(), tempfile::tempdir().unwrap());
    let (clock, search) = (boot_clock(Instant::now()), Search::default());
    let mut rig = Rig::running(engine, kernel, state, clock, search, Watchdog::default());
    rig.put(1, tcp(&[STAYS])).await;
    assert_eq!(asked(), ["reconcile", "settle", "flows"]);
    pass(2).await;
    assert_eq!(asked(), ["settle", "flows"]);
    pass(20).await;
    assert!(asked().is_empty(), "once is enough");

    // The sync period: an engine that can prove its state reads nothing.
    pass(12).await;
    let expected = [
        "forget unproven",
        "reconcile",
        "settle",
        "flows",
        "settle",
        "flows",
    ];
    assert_eq!(asked(), expected);
}
