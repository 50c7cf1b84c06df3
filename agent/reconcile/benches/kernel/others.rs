// SPDX-License-Identifier: Apache-2.0

//! Programming of the same load by other programs.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use portolan_model::Family;
use portolan_model::ipset::{SetHeader, SetKind};
use portolan_netlink::ipset::{Ipset, Request};
use portolan_plan::{Config, Rules, SetName, rules};

use crate::encode::{self, ENTRIES, Pack};
use crate::load::Load;
use crate::wire::Wire;
use crate::{NODE, milliseconds, say};

/// The desired objects as encoded messages, and the sockets to send them.
struct Prepared {
    ipvs: Pack,
    sets: Pack,
    routes: Pack,
    rules: Vec<(Family, Rules)>,
    create: Vec<Request>,
    ipset: Ipset,
    generic: Wire,
    netfilter: Wire,
    route: Wire,
}

impl Prepared {
    fn new(load: Load, entries: usize) -> Result<Self> {
        let config = Config::default();
        let mut generic = Wire::generic()?;
        let family = generic.exchange(&encode::family_request().bytes)?;
        let family = encode::family_number(family)?;
        let sets = Family::ALL.into_iter().flat_map(|family| {
            SetName::ALL.map(|set| Request::Create {
                name: config.names.set(set, family),
                header: header(set.kind(), family),
                expected_entries: 1024,
                exclusive: false,
            })
        });
        Ok(Self {
            ipvs: encode::ipvs(load, family),
            sets: encode::sets(load, entries),
            routes: encode::routes(load, NODE),
            rules: Family::ALL
                .map(|family| (family, rules(family, &config, &Default::default())))
                .into(),
            create: sets.collect(),
            ipset: Ipset::open()?,
            generic,
            netfilter: Wire::netfilter()?,
            route: Wire::route()?,
        })
    }

    fn constant_part(&mut self) -> Result<()> {
        let refused = self.ipset.apply(&self.create)?;
        ensure!(refused.is_empty(), "{refused:?}");
        for (family, rules) in &self.rules {
            let jumps: Vec<_> = rules.jumps.iter().collect();
            let program = match family {
                Family::V4 => "iptables-legacy-restore",
                Family::V6 => "ip6tables-legacy-restore",
            };
            feed(&[program, "--noflush"], &rules.restore_input(&jumps, &[]))?;
        }
        Ok(())
    }
}

fn header(kind: SetKind, family: Family) -> SetHeader {
    SetHeader {
        kind,
        family,
        max_entries: 65_536,
    }
}

/// Programs the final state in a bare loop over encoded messages.
pub(crate) fn floor(load: Load) -> Result<()> {
    let mut prepared = Prepared::new(load, ENTRIES)?;
    let start = Instant::now();
    prepared.constant_part()?;
    say("constant", milliseconds(start));
    prepared.netfilter.batched(&prepared.sets)?;
    say("sets", milliseconds(start));
    prepared.route.batched(&prepared.routes)?;
    say("routes", milliseconds(start));
    prepared.generic.batched(&prepared.ipvs)?;
    say("cold", milliseconds(start));
    check(load)
}

/// As [`floor`], with a message of its own, acknowledged, for each object.
pub(crate) fn one_by_one(load: Load) -> Result<()> {
    let mut prepared = Prepared::new(load, 1)?;
    let start = Instant::now();
    prepared.constant_part()?;
    prepared.netfilter.one_by_one(&mut prepared.sets)?;
    prepared.route.one_by_one(&mut prepared.routes)?;
    prepared.generic.one_by_one(&mut prepared.ipvs)?;
    say("cold", milliseconds(start));
    check(load)
}

/// Programs the virtual and real servers alone, with the library that kube-proxy uses.
pub(crate) fn moby(load: Load) -> Result<()> {
    let Ok(program) = std::env::var("PORTOLAN_MOBY_IPVS") else {
        return Ok(());
    };
    let sizes = [load.services.to_string(), load.endpoints.to_string()];
    let output = Command::new(program).args(sizes).output()?;
    ensure!(output.status.success(), "{output:?}");
    say("cold", String::from_utf8(output.stdout)?.trim().parse()?);
    check(load)
}

/// Programs the virtual and real servers alone, with `ipvsadm`.
pub(crate) fn ipvsadm(load: Load) -> Result<()> {
    let text = load.ipvsadm();
    let start = Instant::now();
    feed(&["ipvsadm", "-R"], &text)?;
    say("cold", milliseconds(start));
    check(load)
}

fn feed(command: &[&str], input: &str) -> Result<()> {
    let (program, args) = command.split_first().context("no command")?;
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    stdin.write_all(input.as_bytes())?;
    drop(stdin);
    let status = child.wait()?;
    ensure!(status.success(), "{program}: {status}");
    Ok(())
}

/// Checks that the kernel holds all servers: a program that did less work would appear faster.
fn check(load: Load) -> Result<()> {
    let state = portolan_netlink::ipvs::Ipvs::open()?.dump()?;
    let real_servers = state.virtual_servers.values().map(|s| s.real_servers.len());
    let found = (state.virtual_servers.len(), real_servers.sum::<usize>());
    let services = load.services as usize;
    let expected = (services, services * load.endpoints as usize);
    ensure!(found == expected, "{found:?} are there, not {expected:?}");
    Ok(())
}
