// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use portolan_director::{Binding, Sync, SysctlMode};
use portolan_plan::VipBinding;
use portolan_plan::host::Timeouts;

use super::*;

fn director(change: impl FnOnce(&mut Director)) -> Arc<Director> {
    let mut director = Director::new("node1");
    change(&mut director);
    Arc::new(director)
}

fn by_command(state_dir: &Path) -> HostDirector {
    let this = HostDirector::new(
        HostFlags::default(),
        state_dir,
        Programs::default(),
        CheckControls::default(),
    );
    assert!(this.follow(director(|director| director.vips.role = Role::Command)));
    this
}

fn is_active(director: &HostDirector) -> bool {
    let asked = director.0.asked.borrow();
    asked.as_ref().is_some_and(|asked| asked.host.is_active)
}

#[test]
fn a_commanded_role_outlives_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    let first = by_command(dir.path());
    assert!(!is_active(&first), "on standby before the first command");
    let number = first.take(Activity::Active).unwrap();
    assert!(is_active(&first) && number == first.number());
    // The same role again asks for nothing new.
    assert_eq!(first.take(Activity::Active).unwrap(), number);
    let second = by_command(dir.path());
    assert!(is_active(&second));
    assert!(second.take(Activity::Standby).unwrap() > 0);
    assert!(!is_active(&second));
}

#[test]
fn a_commanded_role_does_not_outlive_the_boot() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("role.json");
    let comes_back = |text: &str| {
        std::fs::write(&path, text).unwrap();
        is_active(&by_command(dir.path()))
    };
    assert!(by_command(dir.path()).take(Activity::Active).is_ok());
    let saved = std::fs::read_to_string(&path).unwrap();
    assert!(comes_back(&saved));
    // Another director may have become active while this host booted.
    let other = saved.replace(&crate::backends::boot_id(), "another");
    assert_ne!(other, saved);
    assert!(!comes_back(&other));
    assert!(!comes_back(r#"{"role": "active", "boot": ""}"#));
    // An update of the agent leaves an active director active, and the next boot ends that.
    assert!(comes_back(r#"{"role": "active"}"#));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), saved);
}

#[test]
fn a_role_without_a_boot_that_was_saved_before_this_boot_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("role.json");
    let text = r#"{"role": "active"}"#;
    std::fs::write(&path, text).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    assert!(!is_active(&by_command(dir.path())));
    // Nobody has made it one of this boot either.
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    // A clock that was set back since tells nothing.
    let future = std::time::SystemTime::now() + Duration::from_secs(3_600);
    file.set_modified(future).unwrap();
    assert!(is_active(&by_command(dir.path())));
}

#[test]
fn checks_are_suspended_on_standby_alone_and_if_the_object_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let controls = CheckControls::default();
    let suspended = controls.suspended.clone();
    let this = HostDirector::new(
        HostFlags::default(),
        dir.path(),
        Programs::default(),
        controls,
    );
    let mut changes = suspended.subscribe();
    let follow = |role, checks_on_standby| {
        this.follow(director(|director| {
            director.vips.role = role;
            director.checks_on_standby = checks_on_standby;
        }));
        *suspended.borrow()
    };
    assert!(!follow(Role::Command, true), "on standby, with checks");
    assert!(!changes.has_changed().unwrap(), "nothing is new");
    assert!(follow(Role::Command, false), "on standby, without checks");
    assert!(!follow(Role::Always, false), "always active");
    assert!(follow(Role::Command, false));
    this.take(Activity::Active).unwrap();
    assert!(!*suspended.borrow());
    changes.mark_unchanged();
    this.take(Activity::Active).unwrap();
    assert!(!changes.has_changed().unwrap());
    this.take(Activity::Standby).unwrap();
    assert!(*suspended.borrow());
    assert!(!follow(Role::Command, true));
}

#[test]
fn limits_of_checks_are_those_of_the_director_in_force() {
    let dir = tempfile::tempdir().unwrap();
    let controls = CheckControls::default();
    let this = HostDirector::new(
        HostFlags::default(),
        dir.path(),
        Programs::default(),
        controls.clone(),
    );
    let mut limits = controls.limits.subscribe();
    this.follow(director(|_| {}));
    assert!(
        !limits.has_changed().unwrap(),
        "the engine has the defaults"
    );
    let limited = director(|director| {
        director.checks.concurrency = 3;
        director.checks.per_second = 50;
        director.checks.exec_concurrency = 2;
    });
    this.follow(Arc::clone(&limited));
    let expected = Limits {
        concurrency: 3,
        per_second: 50,
        program_concurrency: 2,
    };
    assert_eq!(*limits.borrow_and_update(), expected);
    // Nothing else about the host has changed, and a Director from a controller has them too.
    this.follow(director(|_| {}));
    assert_eq!(*limits.borrow_and_update(), Limits::default());
    this.follow_sent(Some(&limited.to_sent().into()), false, "node1");
    assert_eq!(*limits.borrow_and_update(), expected);
    this.follow_sent(None, false, "node1");
    assert_eq!(*limits.borrow_and_update(), Limits::default());
}

#[test]
fn a_role_needs_a_director_that_follows_commands() {
    let dir = tempfile::tempdir().unwrap();
    let this = HostDirector::new(
        HostFlags::default(),
        dir.path(),
        Programs::default(),
        CheckControls::default(),
    );
    let error = this.take(Activity::Active).unwrap_err();
    assert!(matches!(error, RoleError::NoDirector), "{error}");
    assert!(this.follow(director(|_| {})));
    assert!(is_active(&this));
    let error = this.take(Activity::Standby).unwrap_err();
    assert!(matches!(error, RoleError::Always), "{error}");
    assert!(!this.follow(director(|_| {})), "nothing is new");
}

#[test]
fn a_host_without_a_director_is_left_alone_until_a_controller_sends_one() {
    let dir = tempfile::tempdir().unwrap();
    let new = || {
        HostDirector::new(
            HostFlags::default(),
            dir.path(),
            Programs::default(),
            CheckControls::default(),
        )
    };
    let this = new();
    let asked = |this: &HostDirector| this.0.asked.borrow().as_ref().map(|it| it.host.clone());
    // Whether there is a directory for maintenance is known as soon as the controller has spoken.
    let maintenance = this.maintenance();
    this.follow_sent(None, true, "node1");
    assert_eq!(*maintenance.borrow(), None);
    this.follow_sent(None, false, "node1");
    assert_eq!(*maintenance.borrow(), Some(None));
    assert!(
        asked(&this).is_none(),
        "nodes of a cluster have no Director"
    );
    let sent: Arc<str> = director(|director| director.announce_table = 7)
        .to_sent()
        .into();
    this.follow_sent(Some(&sent), false, "node1");
    assert_eq!(asked(&this).unwrap().announce_table, 7);
    this.follow_sent(None, false, "node1");
    assert_eq!(*asked(&this).unwrap(), Host::default());

    // A Director that went while the agent was not running leaves what it made, which goes.
    let owned = Owned {
        stands_by: true,
        ..Owned::default()
    };
    save_owned(dir.path(), &owned).unwrap();
    let restarted = new();
    restarted.follow_sent(None, true, "node1");
    assert!(
        asked(&restarted).is_none(),
        "the table on disk may be older"
    );
    restarted.follow_sent(None, false, "node1");
    assert_eq!(*asked(&restarted).unwrap(), Host::default());
}

#[test]
fn flags_win_over_fields_and_say_so() {
    let asked = director(|director| {
        director.timeouts.tcp = Some(Duration::from_secs(600));
        director.timeouts.udp = Some(Duration::from_secs(30));
        director.vips.binding = Binding::Address;
        director.marks = 0xff0_0000;
    });
    let flags = HostFlags {
        timeouts: Timeouts {
            tcp: 900,
            ..Timeouts::default()
        },
        binding: Some(VipBinding::Route),
        marks: Some(0xf_0000),
    };
    let host = host_of(&asked, &flags, Activity::Standby);
    assert_eq!(host.marks, flags.marks);
    let host_without = host_of(&asked, &HostFlags::default(), Activity::Standby);
    assert_eq!(host_without.marks, Some(0xff0_0000));
    // The default leaves the choice to the agent.
    let silent = host_of(&director(|_| {}), &HostFlags::default(), Activity::Standby);
    assert_eq!(silent.marks, None);
    let expected = Timeouts {
        tcp: 900,
        tcp_fin: 0,
        udp: 30,
    };
    assert_eq!(
        (host.timeouts, host.binding),
        (expected, Some(VipBinding::Route))
    );
    let expected = [
        "Director node1: spec.timeouts.tcp: --ipvs-tcp-timeout wins",
        "Director node1: spec.vips.binding: --vip-binding wins",
        "Director node1: spec.marks: --short-circuit-mask wins",
    ];
    assert_eq!(overridden(&asked, &flags), expected);
    assert_eq!(overridden(&asked, &HostFlags::default()), [""; 0]);
}

#[test]
fn settings_go_with_the_fields_that_need_them() {
    let asked = director(|director| {
        director.sync = Some(Sync {
            threshold: (1, 10),
            ports: 4,
            ..Sync::new("eth1")
        });
        director.stateless_failover = true;
        director.sysctls.mode = SysctlMode::Check;
        director.vips.binding = Binding::External;
    });
    let host = host_of(&asked, &HostFlags::default(), Activity::Standby);
    let of = |name: &str| host.sysctls.get(&format!("net.ipv4.vs.{name}")).cloned();
    assert_eq!(of("sync_threshold").unwrap(), "1 10");
    assert_eq!(of("sync_ports").unwrap(), "4");
    for protocol in ["tcp", "sctp"] {
        let sloppy = of(&format!("sloppy_{protocol}"));
        assert_eq!(sloppy.as_deref(), Some("1"), "{protocol}");
    }
    assert!(host.is_stateless);
    assert_eq!(host.sync.unwrap().interface, "eth1");
    assert_eq!((host.binding, host.is_active), (None, true));
    let plain = host_of(&director(|_| {}), &HostFlags::default(), Activity::Active);
    assert_eq!(plain, Host::default());
}
