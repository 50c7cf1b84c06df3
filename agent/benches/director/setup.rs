// SPDX-License-Identifier: Apache-2.0

//! The configuration that both programs get.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use portolan_e2e::programs::program;
use portolan_model::Protocol;
use portolan_model::ipvs::VirtualServerKey;

/// The port of all virtual servers.
const PORT: u16 = 80;
/// The port of all real servers.
pub(crate) const REAL_PORT: u16 = 8080;
/// The network of the real servers, which is local: one listener answers for all.
pub(crate) const REAL_SERVERS: &str = "10.200.0.0/16";

/// Numbers of objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) services: u16,
    pub(crate) backends: u16,
    /// Period of a TCP check for each backend, in seconds; 0 for no checks.
    pub(crate) period: u32,
}

impl Load {
    /// The number of real servers.
    pub(crate) fn total(self) -> u32 {
        u32::from(self.services) * u32::from(self.backends)
    }

    /// The virtual server of a number.
    pub(crate) fn key(number: u16) -> VirtualServerKey {
        VirtualServerKey::new(Protocol::Tcp, vip(number).into(), PORT)
    }

    /// A real server of the virtual server of a number.
    pub(crate) fn real_server(self, service: u16, number: u16) -> SocketAddr {
        let [high, low] = (service * self.backends + number).to_be_bytes();
        (Ipv4Addr::new(10, 200, high, low), REAL_PORT).into()
    }

    /// The `keepalived.conf`. The last real server of the last virtual server has this weight, all others 1.
    pub(crate) fn keepalived(self, last_weight: u32) -> String {
        let mut text = String::new();
        for service in 0..self.services {
            let _ = writeln!(
                text,
                "virtual_server {} {PORT} {{\n  lvs_sched wrr\n  lvs_method NAT\n  protocol TCP",
                vip(service)
            );
            if self.period > 0 {
                let _ = writeln!(text, "  delay_loop {}", self.period);
            }
            for number in 0..self.backends {
                let is_last = service + 1 == self.services && number + 1 == self.backends;
                let weight = if is_last { last_weight } else { 1 };
                let real = self.real_server(service, number);
                let check = if self.period > 0 { CHECK } else { "" };
                let _ = writeln!(
                    text,
                    "  real_server {} {} {{\n    weight {weight}\n{check}  }}",
                    real.ip(),
                    real.port()
                );
            }
            text.push_str("}\n");
        }
        text
    }

    /// The same servers as `ipvsadm -R` reads them.
    pub(crate) fn ipvsadm(self) -> String {
        let mut text = String::new();
        for service in 0..self.services {
            let virtual_server = format!("{}:{PORT}", vip(service));
            let _ = writeln!(text, "-A -t {virtual_server} -s wrr");
            for number in 0..self.backends {
                let real = self.real_server(service, number);
                let _ = writeln!(text, "-a -t {virtual_server} -r {real} -m -w 1");
            }
        }
        text
    }
}

/// The check of each backend.
const CHECK: &str = "    TCP_CHECK {\n      connect_timeout 2\n    }\n";

fn vip(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(198, 18, high, low)
}

/// The objects that our importer makes of a `keepalived.conf`. All of it must have the same meaning.
pub(crate) fn imported(keepalived: &str, directory: &Path) -> Result<String> {
    let file = directory.join("import.conf");
    std::fs::write(&file, keepalived)?;
    let mut command = Command::new(program("portolan-agent")?);
    command
        .args(["config", "import", "keepalived"])
        .arg(&file)
        .args(["--director", crate::director::NODE]);
    let output = command.output().context("config import")?;
    ensure!(
        output.status.success(),
        "config import: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}
