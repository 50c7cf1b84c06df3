// SPDX-License-Identifier: Apache-2.0

//! Wiring of the health checks of load balancers' backends.

use std::sync::Arc;

use portolan_plan::Ways;
use portolan_probe::Programs;
use portolan_runtime::Vital;
use portolan_source::file::HooksOf;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::args::{RunArgs, Source};
use crate::backends::overrides::Commands;
use crate::backends::{self, BackendCollector, CheckControls};
use crate::director::HostDirector;
use crate::hooks::{self, HookInputs};
use crate::overview::{self, Overviews};
use crate::subscribe::{BackendHealth, Report, Subscribed};

/// The running checks.
pub(super) struct Checked {
    /// The tables with the results of the checks.
    pub(super) tables: watch::Receiver<Option<Arc<Subscribed>>>,
    /// State of load balancers, for `status`.
    pub(super) overviews: Overviews,
    /// Commands about backends.
    pub(super) commands: Commands,
    /// The director of this host.
    pub(super) director: HostDirector,
    /// Receives the hooks of load balancers.
    pub(super) hooks: watch::Sender<Arc<HooksOf>>,
    /// Health of backends, for the controller.
    pub(super) health: BackendHealth,
}

/// Tables, the ways of checks through the service, and reports of what is programmed.
type CheckInputs = (
    watch::Receiver<Option<Arc<Subscribed>>>,
    watch::Receiver<Arc<Ways>>,
    watch::Receiver<Option<Report>>,
);

/// Starts the health checks of load balancers' backends.
pub(super) fn check_backends(
    args: &RunArgs,
    host: &Arc<str>,
    (tables, ways, reports): CheckInputs,
    metrics: &mut Registry,
    vital: &Vital,
) -> Checked {
    let backends::Started {
        tables,
        engine,
        handle,
        checkups,
        state_file,
        overrides,
        programs,
        controls,
    } = backends::start(tables, ways, args.source, &args.state_dir);
    let ending = || vital.ending.clone();
    vital.spawn("states of backends", state_file.keep(handle.saved.clone()));
    vital.spawn("health checks", engine.run(ending()));
    vital.spawn("time of commands", overrides.clone().keep_time(ending()));
    let health = handle.health.clone();
    let registry = metrics.sub_registry_with_prefix("portolan_agent");
    registry.register_collector(Box::new(BackendCollector(handle)));
    let overviews = Overviews::new(overview::Inputs {
        tables: tables.clone(),
        health: health.clone(),
        overrides: overrides.clone(),
        reports: reports.clone(),
        suspended: controls.suspended.subscribe(),
    });
    let (hooks_out, hooks) = watch::channel(Arc::default());
    if args.source == Source::File {
        let inputs = HookInputs {
            hooks,
            tables: tables.clone(),
            health: health.clone(),
            programs: programs.clone(),
        };
        vital.spawn("hooks", hooks::run(inputs, ending()));
    }
    let commands = Commands {
        store: overrides,
        health: health.clone(),
        tables: tables.clone(),
        reports,
    };
    let director = start_director(args, &commands, (programs, controls), vital);
    let checkups = match args.source {
        Source::Controller => checkups.direct(director.clone(), Arc::clone(host)),
        Source::File => checkups,
    };
    vital.spawn("health of backends", checkups.run(ending()));
    Checked {
        tables,
        overviews,
        director,
        commands,
        hooks: hooks_out,
        health,
    }
}

/// The director of this host, whose backends in maintenance are drained.
fn start_director(
    args: &RunArgs,
    commands: &Commands,
    (programs, controls): (Programs, CheckControls),
    vital: &Vital,
) -> HostDirector {
    let director = HostDirector::new(args.host_flags(), &args.state_dir, programs, controls);
    let backends = commands.store.clone();
    let maintained = backends.keep_maintenance(director.maintenance(), vital.ending.clone());
    vital.spawn("maintenance of backends", maintained);
    director
}
