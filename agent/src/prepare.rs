// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent prepare`: modules and kernel settings of a run, for agents that run without
//! privileges.
//!
//! With `--check` nothing is loaded and no setting is written. The probes of a start are made in either
//! case: they create and delete virtual servers, sets and chains of their own. Chains of other programs that drop
//! forwarded packets of Services are warned of, and never changed.

use portolan_dataplane::{
    Consequence, Kernel, KernelConfig, Modprobe, Modules, NftablesKernel, Setting, WrongSetting,
    load_modules, nftables, settings, settings_without_ipvs,
};
use portolan_model::Family;
use portolan_nftables::Translation;
use portolan_plan::Config;

use crate::app::{DEFAULT_SCHEDULER, must_take_over_first, settle_rules};
use crate::args::{DataplaneKind, PrepareArgs, RunArgs};
use crate::families;
use crate::forwarding;

/// Table of a kube-proxy in nftables mode.
const KUBE_PROXY_TABLE: &str = "kube-proxy";

/// Something that a run needs and this node lacks.
#[derive(Debug, PartialEq, Eq)]
enum Finding {
    /// Preparing does not mend it.
    Unfit(String),
    /// Preparing mends it.
    Unprepared(String),
}

/// Prepares this node for a run with the same flags, or checks whether it is prepared.
///
/// # Errors
/// If a flag cannot be used, or the node lacks something.
pub async fn run(args: PrepareArgs) -> anyhow::Result<()> {
    args.validate()?;
    let PrepareArgs { check, run } = args;
    let (findings, translation) = match run.kernel.dataplane {
        DataplaneKind::Ipvs => (for_ipvs(check, &run).await?, Some(Translation::Ipvs)),
        DataplaneKind::Nftables => (
            for_nftables(check, &run).await?,
            Some(Translation::Nftables),
        ),
        DataplaneKind::Auto => match for_nftables(check, &run).await? {
            findings if is_unfit(&findings) => {
                (for_ipvs(check, &run).await?, Some(Translation::Ipvs))
            }
            findings => (findings, Some(Translation::Nftables)),
        },
        // Refused above.
        DataplaneKind::Userspace => (Vec::new(), None),
    };
    if let Some(translation) = translation {
        tell_closed_chains(translation);
    }
    conclude(&findings)
}

/// Findings for a run with IPVS; with `check` nothing is prepared before.
async fn for_ipvs(check: bool, run: &RunArgs) -> anyhow::Result<Vec<Finding>> {
    let modules = if check {
        Modules::DryRun
    } else {
        Modules::Load
    };
    let mut config = run.kernel_config()?;
    config.load_modules = !check;
    let plan = run.kernel.plan_config()?;
    let scheduler = plan.scheduler.unwrap_or(DEFAULT_SCHEDULER);
    let loaded = load_modules(scheduler, config.vip_binding, modules).await;
    if !matches!(loaded, Modprobe::Loaded) {
        tracing::info!(
            reason = %loaded,
            "not all kernel modules are loaded from here: what they serve for is probed"
        );
    }
    // A takeover ends its rules.
    let mut findings = match run.takeover {
        Some(_) => Vec::new(),
        None => other_proxy(),
    };
    let all = settings(&config.tuning);
    match probe(config, plan, run, scheduler).await {
        Ok(mut kernel) if !check => {
            findings.extend(all.iter().filter_map(written));
            kernel.tune();
        }
        Ok(_) => findings.extend(all.iter().filter_map(compared)),
        // The dry run has found all modules, so that preparing loads them.
        Err(error) if check && is_loadable(&error, &loaded) => {
            findings.push(Finding::Unprepared(format!("{error:#}")));
        }
        Err(error) => findings.push(Finding::Unfit(format!("{error:#}"))),
    }
    Ok(findings)
}

/// Warns of chains of others that drop packets of Services. They are no findings: other rules may accept these packets.
fn tell_closed_chains(translation: Translation) {
    if let Err(error) = forwarding::tell_now(translation) {
        tracing::info!(%error, "chains of others that drop forwarded packets cannot be read");
    }
}

/// As [`for_ipvs`], with nftables, whose modules the kernel loads for a check of its rules. The takeover from a
/// kube-proxy in IPVS mode needs IPVS first.
async fn for_nftables(check: bool, run: &RunArgs) -> anyhow::Result<Vec<Finding>> {
    let (config, plan) = (run.kernel_config()?, run.kernel.plan_config()?);
    let mut findings = match must_take_over_first(run, &plan).await? {
        true => for_ipvs(check, run).await?,
        false => Vec::new(),
    };
    let all = settings_without_ipvs(&config.tuning);
    let probed = NftablesKernel::open(config)
        .map_err(anyhow::Error::from)
        .and_then(|mut kernel| families::settle_nftables(&mut kernel, run.families, &plan));
    let treat = if check { compared } else { written };
    match probed {
        Ok(_) => findings.extend(all.iter().filter_map(treat)),
        Err(error) => findings.push(Finding::Unfit(format!("{error:#}"))),
    }
    Ok(findings)
}

/// Makes the probes of a start.
async fn probe(
    config: KernelConfig,
    mut plan: Config,
    run: &RunArgs,
    scheduler: &str,
) -> anyhow::Result<Kernel> {
    let mut kernel = Kernel::open(config).await?;
    let served = families::settle(&mut kernel, run.families, scheduler).await?;
    plan.families = served.iter().collect();
    settle_rules(&mut kernel, &mut plan).await?;
    Ok(kernel)
}

fn is_loadable(error: &anyhow::Error, loaded: &Modprobe) -> bool {
    use portolan_dataplane::DataplaneError;
    let missing = matches!(error.downcast_ref(), Some(DataplaneError::NoModule { .. }));
    missing && matches!(loaded, Modprobe::Loaded)
}

/// A kube-proxy in nftables mode: it flushes IPVS whenever it starts.
fn other_proxy() -> Vec<Finding> {
    let has_table = |family: &Family| match nftables::tables(*family) {
        Ok(names) => names.iter().any(|name| name == KUBE_PROXY_TABLE),
        Err(error) => {
            tracing::warn!(%family, %error, "tables of nftables cannot be read");
            false
        }
    };
    let families: Vec<_> = Family::ALL.into_iter().filter(has_table).collect();
    let finding = |family| {
        Finding::Unfit(format!(
            "nftables has a table {KUBE_PROXY_TABLE} of {family}: a kube-proxy in nftables mode \
             rewrites packets before IPVS sees them, and flushes IPVS when it starts"
        ))
    };
    families.into_iter().map(finding).collect()
}

/// Writes a setting.
fn written(setting: &Setting) -> Option<Finding> {
    let wrong = setting.write().err()?;
    match setting.consequence() {
        Consequence::NoForwarding => Some(Finding::Unfit(of_setting(&wrong))),
        Consequence::Limited(consequence) => {
            tracing::warn!(consequence, "kernel setting {wrong}: not written");
            None
        }
    }
}

/// Compares a setting. Its file is opened for writing, to see whether preparing could write it.
fn compared(setting: &Setting) -> Option<Finding> {
    let wrong = setting.compare().err()?;
    Some(match (&wrong.error, setting.try_writing()) {
        (None, Ok(())) => Finding::Unprepared(of_setting(&wrong)),
        (None, Err(error)) => Finding::Unfit(of_setting(&WrongSetting {
            error: Some(error),
            ..wrong
        })),
        (Some(_), _) => Finding::Unfit(of_setting(&wrong)),
    })
}

fn of_setting(wrong: &WrongSetting) -> String {
    match wrong.setting.consequence() {
        Consequence::NoForwarding => format!("kernel setting {wrong}"),
        Consequence::Limited(consequence) => format!("kernel setting {wrong}: else {consequence}"),
    }
}

fn is_unfit(findings: &[Finding]) -> bool {
    let is_unfit = |finding: &Finding| matches!(finding, Finding::Unfit(_));
    findings.iter().any(is_unfit)
}

/// Logs the findings.
fn conclude(findings: &[Finding]) -> anyhow::Result<()> {
    let mut unfit = 0;
    for finding in findings {
        match finding {
            Finding::Unfit(text) => {
                unfit += 1;
                tracing::error!("missing: {text}");
            }
            Finding::Unprepared(text) => tracing::warn!("not prepared yet: {text}"),
        }
    }
    let all = findings.len();
    match unfit {
        0 if all == 0 => {
            tracing::info!("this node is prepared");
            Ok(())
        }
        0 => anyhow::bail!(
            "this node is fit and not prepared ({all} findings): run `portolan-agent prepare`"
        ),
        _ => anyhow::bail!("this node is unfit for a run with these flags ({unfit} findings)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_finding_is_an_error_and_an_unfit_node_is_called_so() {
        let unprepared = || Finding::Unprepared("a".to_owned());
        let unfit = || Finding::Unfit("b".to_owned());
        let error = |findings: &[Finding]| {
            let concluded = conclude(findings);
            concluded.err().map(|error| error.to_string())
        };
        assert_eq!(error(&[]), None);
        let found = error(&[unprepared(), unprepared()]).unwrap();
        assert!(
            found.starts_with("this node is fit and not prepared (2"),
            "{found}"
        );
        let found = error(&[unprepared(), unfit()]).unwrap();
        assert!(found.starts_with("this node is unfit"), "{found}");
        assert!(found.ends_with("(1 findings)"), "{found}");
    }

    #[test]
    fn only_missing_modules_that_were_found_are_loadable() {
        let missing = portolan_dataplane::DataplaneError::NoModule {
            what: "IPVS",
            reason: String::new(),
        };
        let missing = anyhow::Error::from(missing);
        assert!(is_loadable(&missing, &Modprobe::Loaded));
        assert!(!is_loadable(&missing, &Modprobe::NotRun));
        assert!(!is_loadable(&anyhow::anyhow!("x"), &Modprobe::Loaded));
    }
}
