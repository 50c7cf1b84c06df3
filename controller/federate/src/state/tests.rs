// SPDX-License-Identifier: Apache-2.0

mod drains;
mod following;
mod mass_loss;
mod properties;
mod restarts;

use super::*;

/// Rules as in the defaults of a set.
fn settings() -> Settings {
    Settings {
        stale_ttl: Duration::from_mins(5),
        return_after: Duration::from_mins(1),
        ramp_up: Duration::from_mins(2),
        drain: None,
    }
}

fn drained(to: u8, over: u64) -> Settings {
    Settings {
        drain: Some(Drain {
            to,
            over: Duration::from_secs(over),
        }),
        ..settings()
    }
}

/// A fleet with a clock: seconds pass one by one, with a contact of each cluster that is up.
struct World {
    fleet: Fleet,
    now: u64,
    up: Vec<(Arc<str>, bool)>,
    transitions: Vec<String>,
    mass_loss: u8,
}

impl World {
    /// Clusters in contact, all of them Ready.
    fn new(clusters: usize) -> Self {
        let ids = ["a", "b", "c", "d", "e"];
        let up: Vec<(Arc<str>, bool)> = ids[..clusters]
            .iter()
            .map(|id| (Arc::from(*id), true))
            .collect();
        let mut world = Self {
            fleet: Fleet::default(),
            now: 1_000_000,
            up,
            transitions: Vec::new(),
            mass_loss: 50,
        };
        for (id, _) in &world.up {
            world.fleet.set(id, settings());
        }
        world.pass(1);
        assert!(
            world
                .fleet
                .statuses()
                .values()
                .all(|status| { (status.phase, status.step) == (Phase::Ready, FULL) })
        );
        world.transitions.clear();
        world
    }

    fn moment(&self) -> Moment {
        Moment(Duration::from_secs(self.now))
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += 1;
            let now = self.moment();
            for (id, up) in &self.up {
                if *up {
                    self.fleet.contact(id, true, now);
                }
            }
            for transition in self.fleet.advance(now, self.mass_loss) {
                let Transition { cluster, from, to } = transition;
                self.transitions.push(format!("{cluster} {from} {to}"));
            }
        }
    }

    fn cut(&mut self, ids: &str) {
        self.set_up(ids, false);
    }

    fn join(&mut self, ids: &str) {
        self.set_up(ids, true);
    }

    fn set_up(&mut self, ids: &str, value: bool) {
        for (id, up) in &mut self.up {
            if ids.contains(&**id) {
                *up = value;
            }
        }
    }

    fn set(&mut self, id: &str, settings: Settings) {
        self.fleet.set(&Arc::from(id), settings);
    }

    fn shown(&self, id: &str) -> (Phase, u8) {
        let status = self.fleet.status(id).unwrap();
        (status.phase, status.step)
    }

    /// Another replica goes on with the statuses.
    fn change_leader(&mut self, settings: Settings) {
        let statuses = self.fleet.statuses();
        self.fleet = Fleet::resume(&statuses, self.moment());
        for (id, _) in &self.up {
            self.fleet.set(id, settings);
        }
    }

    fn taken(&mut self) -> Vec<String> {
        std::mem::take(&mut self.transitions)
    }
}

#[test]
fn a_new_cluster_is_ready_when_all_kinds_are_listed() {
    let mut fleet = Fleet::default();
    fleet.set(&Arc::from("a"), settings());
    let mut phases = Vec::new();
    for second in 0..100 {
        let now = Moment(Duration::from_secs(second));
        if second >= 60 {
            fleet.contact("a", second >= 80, now);
        }
        fleet.advance(now, 50);
        phases.push(fleet.status("a").unwrap().phase);
    }
    assert_eq!(phases[79], Phase::Connecting);
    assert_eq!(phases[80], Phase::Ready);
    assert!(phases[..80].iter().all(|phase| *phase == Phase::Connecting));
    assert_eq!(fleet.status("a").unwrap().step, FULL);
}

#[test]
fn a_silent_cluster_is_stale_and_back_at_once() {
    let mut world = World::new(3);
    world.cut("a");
    world.pass(29);
    assert_eq!(world.shown("a"), (Phase::Ready, 20));
    world.pass(1);
    assert_eq!(world.shown("a"), (Phase::Stale, 20));
    world.pass(299);
    assert_eq!(world.shown("a"), (Phase::Stale, 20));
    world.join("a");
    world.pass(1);
    assert_eq!(world.shown("a"), (Phase::Ready, 20));
    assert_eq!(world.taken(), ["a Ready Stale", "a Stale Ready"]);
}

#[test]
fn a_cluster_is_lost_after_its_ttl_and_returns_in_steps() {
    let mut world = World::new(3);
    world.cut("a");
    world.pass(30 + 300);
    assert_eq!(world.shown("a"), (Phase::Lost, 0));
    let status = world.fleet.status("a").unwrap();
    assert_eq!((status.losses, status.recent_losses.len()), (1, 1));
    world.pass(1000);
    world.join("a");
    world.pass(59);
    assert_eq!(world.shown("a"), (Phase::Lost, 0));
    world.pass(1);
    assert_eq!(world.shown("a"), (Phase::Returning, 1));
    let mut steps = Vec::new();
    for _ in 0..120 {
        world.pass(1);
        steps.push(world.shown("a").1);
    }
    assert!(steps.is_sorted());
    // Half of the ramp, half of the share.
    assert_eq!(steps[59], 10);
    assert_eq!(steps[118], 19);
    assert_eq!(steps[119], 20);
    assert_eq!(world.shown("a"), (Phase::Ready, 20));
    let expected = [
        "a Ready Stale",
        "a Stale Lost",
        "a Lost Returning",
        "a Returning Ready",
    ];
    assert_eq!(world.taken(), expected);
}

#[test]
fn contact_is_held_out_without_a_gap() {
    let mut world = World::new(3);
    world.cut("a");
    world.pass(400);
    world.join("a");
    world.pass(20);
    world.cut("a");
    world.pass(31);
    world.join("a");
    world.pass(59);
    assert_eq!(world.shown("a"), (Phase::Lost, 0));
    world.pass(1);
    assert_eq!(world.shown("a"), (Phase::Returning, 1));
}

#[test]
fn a_lost_cluster_is_listed_before_it_returns() {
    let mut world = World::new(3);
    world.cut("a");
    world.pass(400);
    for _ in 0..200 {
        let now = world.moment();
        world.fleet.contact("a", false, now);
        world.pass(1);
    }
    assert_eq!(world.shown("a"), (Phase::Lost, 0));
    // The wait begins when it is listed.
    world.join("a");
    world.pass(59);
    assert_eq!(world.shown("a"), (Phase::Lost, 0));
    world.pass(1);
    assert_eq!(world.shown("a"), (Phase::Returning, 1));
}

#[test]
fn a_lost_cluster_that_is_silent_does_not_return_without_a_wait() {
    let mut world = World::new(3);
    let at_once = Settings {
        return_after: Duration::ZERO,
        ramp_up: Duration::ZERO,
        ..settings()
    };
    world.set("a", at_once);
    world.cut("a");
    world.pass(30 + 300 + 2);
    assert_eq!(world.shown("a"), (Phase::Lost, 0));
    world.pass(600);
    assert_eq!(world.shown("a"), (Phase::Lost, 0));
    world.join("a");
    world.pass(1);
    assert_eq!(world.shown("a"), (Phase::Ready, 20));
    let expected = ["a Ready Stale", "a Stale Lost", "a Lost Ready"];
    assert_eq!(world.taken(), expected);
}

#[test]
fn a_returning_cluster_that_is_stale_goes_on_where_it_was() {
    let mut world = World::new(3);
    world.cut("a");
    world.pass(400);
    world.join("a");
    world.pass(60 + 60);
    assert_eq!(world.shown("a"), (Phase::Returning, 10));
    world.cut("a");
    world.pass(100);
    let (phase, step) = world.shown("a");
    assert_eq!(phase, Phase::Stale);
    assert!(step < 20);
    world.join("a");
    world.pass(1);
    assert_eq!(world.shown("a"), (Phase::Returning, step));
}

#[test]
fn each_loss_within_an_hour_doubles_the_wait() {
    let mut world = World::new(3);
    let mut waits = Vec::new();
    for _ in 0..5 {
        world.cut("a");
        world.pass(330);
        world.join("a");
        let from = world.now;
        while world.shown("a").0 == Phase::Lost {
            world.pass(1);
        }
        waits.push(world.now - from);
    }
    assert_eq!(waits, [60, 120, 240, 480, 600]);
    world.pass(3600);
    world.cut("a");
    world.pass(330);
    world.join("a");
    world.pass(60);
    assert_eq!(world.shown("a"), (Phase::Returning, 1));
    let status = world.fleet.status("a").unwrap();
    assert_eq!((status.losses, status.recent_losses.len()), (6, 1));
}

#[test]
fn twenty_short_cuts_change_nothing() {
    let mut world = World::new(3);
    for _ in 0..20 {
        world.cut("a");
        for _ in 0..320 {
            world.pass(1);
            assert_eq!(world.shown("a").1, 20);
        }
        world.join("a");
        world.pass(1);
        assert_eq!(world.shown("a"), (Phase::Ready, 20));
    }
    assert_eq!(world.fleet.status("a").unwrap().losses, 0);
}

#[test]
fn a_ttl_of_zero_never_ends() {
    let mut world = World::new(3);
    let never = Settings {
        stale_ttl: Duration::ZERO,
        ..settings()
    };
    world.set("a", never);
    world.cut("a");
    world.pass(20_000);
    assert_eq!(world.shown("a"), (Phase::Stale, 20));
}

#[test]
fn agents_are_served_without_a_cluster_that_is_new_or_would_be_lost() {
    let ttl = Duration::from_secs(300);
    let at = |seconds| Moment(Duration::from_secs(seconds));
    assert!(may_serve_without(None, ttl, at(1000)));
    assert!(!may_serve_without(Some(at(1000)), ttl, at(1329)));
    assert!(may_serve_without(Some(at(1000)), ttl, at(1330)));
    assert!(!may_serve_without(
        Some(at(1000)),
        Duration::ZERO,
        at(100_000)
    ));
}

#[test]
fn a_cluster_that_was_never_in_contact_is_not_waited_for_without_end() {
    let seconds = Duration::from_secs;
    assert!(may_be_late(seconds(60), seconds(89)));
    assert!(!may_be_late(seconds(60), seconds(90)));
    assert!(may_be_late(Duration::ZERO, seconds(329)));
    assert!(!may_be_late(Duration::ZERO, seconds(330)));
}

#[test]
fn the_settings_of_a_cluster_come_before_those_of_the_set() {
    let text = "apiVersion: portolan.dev/v1alpha1\nkind: Cluster\nmetadata: {name: a}\nspec: {access: {edge: {}}, network: {podCIDRs: [10.0.0.0/8]}, loss: {staleTTL: 7s}}\n";
    let reading = portolan_policy::read(&[portolan_policy::File { name: "a", text }]);
    let found = Settings::new(&Loss::default(), &reading.objects.clusters["a"]);
    let expected = Settings {
        stale_ttl: Duration::from_secs(7),
        ..settings()
    };
    assert_eq!(found, expected);
}

#[test]
fn what_a_clock_noted_that_was_ahead_counts_from_now_on() {
    let at = |seconds| Moment(Duration::from_secs(seconds));
    let mut world = World::new(3);
    world.pass(1);
    let mut status = world.fleet.status("a").unwrap();
    status.last_contact = Some(at(1_000_000));
    status.recent_losses = vec![at(1_000_000)];
    let mut fleet = Fleet::resume(&[("a".into(), status)].into(), at(1000));
    let noted = |fleet: &Fleet| {
        let status = fleet.status("a").unwrap();
        (status.last_contact, status.recent_losses)
    };
    assert_eq!(noted(&fleet), (Some(at(1000)), vec![at(1000)]));
    // The clock is set back while the process runs.
    fleet.advance(at(400), 50);
    assert_eq!(noted(&fleet), (Some(at(400)), vec![at(400)]));
    fleet.advance(at(500), 50);
    assert_eq!(noted(&fleet), (Some(at(400)), vec![at(400)]));
}
