// SPDX-License-Identifier: Apache-2.0

//! `plan` and `apply --once`: files and the kernel, without a running agent.
//!
//! Any problem of a file is an error here, and nothing is programmed: these commands have no last good
//! version of an object to keep.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use portolan_dataplane::{Dataplane as _, Kernel};
use portolan_model::{NodeKey, NodeTable};
use portolan_plan::export::{StepLine, Totals, step_lines};
use portolan_plan::host::Host;
use portolan_reconcile::{Preview, Reconciler};
use portolan_select::SelectConfig;
use portolan_source::file::Files;
use serde_json::json;

use crate::app::{DEFAULT_SCHEDULER, open_kernel, settle_rules};
use crate::args::{ApplyArgs, PlanArgs, PlanOutput, RunArgs, Source};
use crate::backends::overrides::{Maintenance, Now, load};
use crate::backends::{Health, health_of};
use crate::check_config::problems;
use crate::director::{host_of, load_owned, load_role, overridden, save_owned};
use crate::standalone::table_of;
use crate::state_lock::StateLock;
use crate::sync::{BootClock, Drainer};

/// Exit code of a plan that has steps.
const HAS_STEPS: u8 = 2;

/// Pause between two looks for room in the kernel for further deletions.
const ROOM_PAUSE: Duration = Duration::from_millis(100);

/// Prints the steps from the kernel's state to that of the files.
pub async fn plan(args: PlanArgs) -> ExitCode {
    let PlanArgs { output, mut run } = args;
    let planned = async {
        let (table, mut warnings, host) = table_of_files(&mut run)?;
        let preview = preview(&run, &table, host, true).await?;
        warnings.extend(preview.host.warnings.iter().cloned());
        let lines = lines(&preview);
        let text = match output {
            PlanOutput::Text => text(&preview, &lines, &warnings),
            PlanOutput::Json => json_text(&preview, &lines, &warnings),
        };
        print(&text)?;
        anyhow::Ok(!(preview.steps.is_empty() && preview.host.steps.is_empty()))
    };
    match planned.await {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::from(HAS_STEPS),
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the kernel equal to the files.
///
/// # Errors
/// If a flag or a file cannot be used, an agent runs, or a step failed.
pub async fn apply(args: ApplyArgs) -> anyhow::Result<()> {
    let mut run = args.run;
    let (table, warnings, host) = table_of_files(&mut run)?;
    warn(&warnings);
    let _lock = StateLock::exclusive(&run.state_dir)?;
    let mut reconciler = open(&run, true, true).await?;
    reconciler.set_host(Some(host), load_owned(&run.state_dir));
    reconciler.begin_host().await;
    let mut outcome = reconciler.reconcile(&table).await?;
    save_owned(&run.state_dir, &reconciler.owned_then(&table))?;
    let of_host = reconciler.finish_host(&table).await;
    save_owned(&run.state_dir, reconciler.owned())?;
    outcome.objects += of_host.changed;
    warn(&of_host.warnings);
    let errors = of_host.errors.into_iter().map(|error| (None, error));
    outcome.errors.extend(errors);
    reconciler.settle().await?;
    let drained = drain(&run, &mut reconciler, &table).await;
    let flows = reconciler.forget_stale_flows(&table).await;
    for (record, error) in &outcome.errors {
        match record {
            Some(record) => tracing::error!("{record}: {error}"),
            None => tracing::error!("{error}"),
        }
    }
    drained.context("connections of draining real servers cannot be read")?;
    flows.context("stale UDP flows cannot be deleted")?;
    let failed = outcome.errors.len();
    ensure!(failed == 0, "applied with {failed} errors");
    tracing::info!(objects = outcome.objects, "applied");
    Ok(())
}

/// The table of the files, warnings about its objects, and the settings of the host.
pub(crate) fn table_of_files(
    run: &mut RunArgs,
) -> anyhow::Result<(Arc<NodeTable>, Vec<String>, Arc<Host>)> {
    run.source = Source::File;
    run.validate()?;
    let node = NodeKey {
        cluster: run.cluster.as_str().into(),
        name: run.node_name()?.into(),
    };
    let files = Files::new(run.file.clone(), &node.cluster);
    let files = files.on_host(Arc::clone(&node.name));
    let report = files.of_proxy(run.service_proxy_name.clone()).refresh();
    let errors = problems(&report);
    for error in &errors {
        tracing::error!("{error}");
    }
    ensure!(
        errors.is_empty() && report.complete,
        "the files have {} errors: nothing is planned or programmed",
        errors.len()
    );
    let select = SelectConfig {
        source_ranges: run.source_ranges,
    };
    let (mut table, mut warnings) = table_of(report.changes, &node, select);
    let director = report.director.context("the files were not read")?;
    let mut overrides = load(&run.state_dir, &Now::read()).of_records(&table.records);
    if let Some(directory) = &director.maintenance_directory {
        let maintenance = Maintenance::read(directory.as_ref())
            .with_context(|| format!("spec.maintenanceDirectory: {directory}"))?;
        overrides = maintenance.drain(&table.records, overrides);
    }
    table.health = health_of(&table.records, Health::new(), overrides);
    let flags = run.host_flags();
    warnings.extend(overridden(&director, &flags));
    let host = host_of(&director, &flags, load_role(&run.state_dir));
    Ok((Arc::new(table), warnings, Arc::new(host)))
}

/// A reconciler of the kernel. `load_modules` loads the modules that the kernel lacks, `is_prepared` writes the kernel
/// settings that a run needs.
async fn open(
    run: &RunArgs,
    load_modules: bool,
    is_prepared: bool,
) -> anyhow::Result<Reconciler<Kernel>> {
    let mut config = run.kernel.plan_config()?;
    let scheduler = config.scheduler.unwrap_or(DEFAULT_SCHEDULER);
    let (mut kernel, families) = open_kernel(run, scheduler, load_modules).await?;
    if is_prepared {
        kernel.prepare().await?;
    }
    config.families = families.iter().collect();
    // Nothing is checked here.
    config.awaits_checks = false;
    settle_rules(&mut kernel, &mut config).await?;
    Ok(Reconciler::new(kernel, config))
}

/// Reads the kernel, and plans. `load_modules` loads the modules that the kernel lacks.
pub(crate) async fn preview(
    run: &RunArgs,
    table: &Arc<NodeTable>,
    host: Arc<Host>,
    load_modules: bool,
) -> anyhow::Result<Preview> {
    let mut reconciler = open(run, load_modules, false).await?;
    reconciler.set_host(Some(host), load_owned(&run.state_dir));
    Ok(reconciler.preview(table).await?)
}

/// Deletes drained real servers, and begins the drains of others. Deadlines are kept for later calls.
async fn drain(
    run: &RunArgs,
    reconciler: &mut Reconciler<Kernel>,
    table: &NodeTable,
) -> anyhow::Result<()> {
    let mut drainer = Drainer::open(&run.state_dir, run.drain_timeout(), BootClock::system());
    loop {
        if let Some(draining) = reconciler.draining(table) {
            drainer.note(&draining);
        }
        let passed = |draining: &_| drainer.has_passed(draining);
        reconciler.finish_drains(passed).await?;
        // Deletions that wait for room in the kernel follow until none is left.
        if !reconciler.has_put_off() {
            break;
        }
        tokio::time::sleep(ROOM_PAUSE).await;
    }
    drainer.close().await;
    Ok(())
}

fn lines(preview: &Preview) -> Vec<StepLine> {
    let Preview {
        observed,
        desired,
        steps,
        host,
        ..
    } = preview;
    let of_step = |step| step_lines(step, observed, desired);
    let of_host = host.steps.iter().map(|step| step.line(&host.observed));
    steps.iter().flat_map(of_step).chain(of_host).collect()
}

pub(crate) fn refused(preview: &Preview) -> Vec<String> {
    let refused = preview.desired.refused.iter();
    let refused = refused.map(ToString::to_string);
    let lacking = preview.lacking.iter().map(ToString::to_string);
    refused
        .chain(lacking)
        .chain(preview.host.problems.iter().cloned())
        .collect()
}

/// The lines, each record's below a heading.
fn text(preview: &Preview, lines: &[StepLine], warnings: &[String]) -> String {
    let mut text = String::new();
    for warning in warnings.iter().chain(&refused(preview)) {
        text.push_str(&format!("# warning: {warning}\n"));
    }
    let mut record = None;
    for line in lines {
        if record != Some(&line.record) {
            let heading = line.record.as_deref().unwrap_or("shared by all Services");
            text.push_str(&format!("# {heading}\n"));
            record = Some(&line.record);
        }
        text.push_str(&format!("{line}\n"));
    }
    text.push_str(&format!("{}\n", Totals::of(lines)));
    text
}

fn json_text(preview: &Preview, lines: &[StepLine], warnings: &[String]) -> String {
    let plan = json!({
        "steps": lines,
        "refused": refused(preview),
        "problems": warnings,
    });
    format!("{plan:#}\n")
}

pub(crate) fn warn(warnings: &[String]) {
    warnings
        .iter()
        .for_each(|warning| tracing::warn!("{warning}"));
}

/// Writes to standard output. A reader that has gone is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}
