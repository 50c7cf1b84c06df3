// SPDX-License-Identifier: Apache-2.0

//! Metrics of the process and of the build.

use std::fs;
use std::sync::OnceLock;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use rustix::process::{Resource, getrlimit};

use crate::{Scrape, gauge_value};

/// Version of a program and the tools that built it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct BuildInfo {
    /// Version of the package.
    pub version: &'static str,
    /// Commit of the sources; empty if they were no checkout.
    pub revision: &'static str,
    /// Version of the compiler.
    pub rustc: &'static str,
}

/// The build of this program. All crates of the workspace have one version.
pub const BUILD: BuildInfo = BuildInfo {
    version: env!("CARGO_PKG_VERSION"),
    revision: env!("PORTOLAN_REVISION"),
    rustc: env!("PORTOLAN_RUSTC"),
};

/// Registers `portolan_build_info` and the `process_*` metrics, which have the names that Prometheus
/// clients of other languages use.
pub fn register_process(registry: &mut Registry) {
    let help = "Version of the program and of the compiler that built it";
    registry.register("portolan_build", help, Info::new(BUILD));
    registry.register_collector(Box::new(ProcessCollector));
    registry.register_collector(Box::new(ResourceCollector));
}

/// Clock ticks a second in `/proc`: `USER_HZ`, which is 100 on every architecture that Rust supports
/// on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reads the times of the process when metrics are scraped.
#[derive(Debug)]
struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        if let Some(times) = Times::read() {
            // Not a whole number, as counters of `Scrape` are.
            let cpu = ConstCounter::new(times.cpu_seconds);
            let help = "User and system CPU time in seconds";
            let kind = MetricType::Counter;
            cpu.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, kind)?)?;
            if let Some(boot) = boot_seconds() {
                let start = boot + times.started_after_boot;
                let help = "Start of the process in seconds of Unix time";
                Scrape::new(encoder).gauge("process_start_time_seconds", help, start)?;
            }
        }
        Ok(())
    }
}

/// Reads memory and descriptors when metrics are scraped.
#[derive(Debug)]
struct ResourceCollector;

impl Collector for ResourceCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let open = fs::read_dir("/proc/self/fd").map(|entries| entries.count());
        // The descriptor that lists them is open too.
        let open = open.ok().and_then(|count| u64::try_from(count - 1).ok());
        let limit = getrlimit(Resource::Nofile).current;
        let (resident, size) = (bytes(&status, "VmRSS:"), bytes(&status, "VmSize:"));
        let mut scrape = Scrape::new(encoder);
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Resident memory in bytes",
                resident,
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory in bytes",
                size,
            ),
            ("process_open_fds", "Open file descriptors", open),
            ("process_max_fds", "Limit of open file descriptors", limit),
        ] {
            if let Some(value) = value {
                scrape.gauge(name, help, gauge_value(value))?;
            }
        }
        Ok(())
    }
}

/// A line such as `VmRSS:      1234 kB` of `/proc/self/status`.
fn bytes(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Times of `/proc/self/stat`, in seconds.
#[derive(Debug, PartialEq)]
struct Times {
    cpu_seconds: f64,
    /// From the machine's start to the process's.
    started_after_boot: f64,
}

impl Times {
    fn read() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/self/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The second field is the program's name in parentheses, which may contain anything.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<_> = fields.split_whitespace().collect();
        // Fields are numbered from 1 in proc_pid_stat(5); the first one here is number 3.
        let seconds = |number: usize| {
            let ticks: f64 = fields.get(number - 3)?.parse().ok()?;
            Some(ticks / TICKS_PER_SECOND)
        };
        Some(Self {
            cpu_seconds: seconds(14)? + seconds(15)?,
            started_after_boot: seconds(22)?,
        })
    }
}

/// Unix time of the machine's start. Read once: a clock that is set must not move the start of the
/// process.
fn boot_seconds() -> Option<f64> {
    static BOOT: OnceLock<Option<f64>> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("btime "))?;
        line.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use prometheus_client::encoding::text::encode;

    use super::*;

    fn value(text: &str, name: &str) -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        value.trim().parse().unwrap()
    }

    #[test]
    fn the_process_and_its_build_are_shown() {
        let mut registry = Registry::default();
        register_process(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let build = format!(
            "portolan_build_info{{version=\"{}\",revision=",
            BUILD.version
        );
        assert!(
            text.contains(&build) && text.contains("rustc=\"rustc "),
            "{text}"
        );
        let resident = value(&text, "process_resident_memory_bytes ");
        assert!(resident > 1e6 && resident < value(&text, "process_virtual_memory_bytes "));
        assert!(value(&text, "process_open_fds ") >= 3.0);
        assert!(value(&text, "process_max_fds ") >= value(&text, "process_open_fds "));
        assert!(value(&text, "process_cpu_seconds_total ") >= 0.0);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
        let age = now - value(&text, "process_start_time_seconds ");
        assert!((-2.0..86_400.0).contains(&age), "{age}");
    }

    #[test]
    fn a_program_name_may_contain_anything() {
        let numbers: Vec<_> = (3..=52).map(|number| number.to_string()).collect();
        let text = format!("1 (a) b) (c) {}", numbers.join(" "));
        let times = Times::parse(&text).unwrap();
        assert!((times.cpu_seconds - 0.29).abs() < 1e-9);
        assert!((times.started_after_boot - 0.22).abs() < 1e-9);
        assert_eq!(Times::parse("1 (a) S 1 2"), None);
        assert_eq!(
            bytes("VmSize:\t  9 kB\nVmRSS:\t  2 kB\n", "VmRSS:"),
            Some(2_048)
        );
    }
}
