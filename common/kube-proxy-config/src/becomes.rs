// SPDX-License-Identifier: Apache-2.0

//! Conversion of a configuration into values of the chart.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use crate::config::{Config, Setting};
use crate::field::{Becomes, Field};
use crate::values::Values;

/// Verbosity from which kube-proxy logs details of each sync.
const DEBUG_VERBOSITY: u64 = 4;

/// Something that the reader of the values must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Path of the field.
    pub path: &'static str,
    /// Reason that it has no counterpart, or the remedy.
    pub reason: String,
    /// Whether something that is set has no counterpart. Otherwise it is a note.
    pub is_lost: bool,
}

/// The result of a conversion.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Converted {
    /// Values that differ from the chart's defaults.
    pub values: Values,
    /// Settings without a counterpart, and notes.
    pub findings: Vec<Finding>,
}

impl Converted {
    fn lost(&mut self, path: &'static str, reason: impl Into<String>) {
        self.find(path, reason.into(), true);
    }

    fn note(&mut self, path: &'static str, reason: impl Into<String>) {
        self.find(path, reason.into(), false);
    }

    fn find(&mut self, path: &'static str, reason: String, is_lost: bool) {
        self.findings.push(Finding {
            path,
            reason,
            is_lost,
        });
    }

    /// Returns `true` if something that is set has no counterpart.
    #[must_use]
    pub fn has_losses(&self) -> bool {
        self.findings.iter().any(|finding| finding.is_lost)
    }
}

/// Converts a configuration. The kubeconfig is the one that `clientConnection.kubeconfig` names, if it can
/// be seen.
///
/// # Errors
/// If nothing can take this configuration's place: the path of the field, and why.
pub fn convert(
    config: &Config,
    kubeconfig: Option<&str>,
) -> Result<Converted, (&'static str, String)> {
    let mut done = Converted::default();
    for setting in config.settings() {
        let Some(field) = Field::at(setting.path) else {
            continue;
        };
        if !config.reads(field.modes) {
            done.note(
                field.path,
                "kube-proxy does not read it in this mode; left out",
            );
            continue;
        }
        match field.becomes {
            Becomes::Value(path, default) => {
                let value = value_of(&setting);
                if plain(&value) != default {
                    done.values.set(path, value, field.path);
                }
            }
            Becomes::Always(_) => {}
            Becomes::Nothing(reason) => done.lost(field.path, reason),
            Becomes::Rule => apply_rule(&setting, config, kubeconfig, &mut done)?,
        }
    }
    if config.get("mode").is_none() {
        other_mode("the default mode", &mut done);
    }
    let is_by_cidr = config.get("detectLocalMode").is_none();
    if is_by_cidr && config.get("clusterCIDR").is_none() {
        done.note(
            "clusterCIDR",
            "it is empty: the chart asks for the networks of pods in agent.kernel.clusterCIDRs, or for another \
             agent.kernel.detectLocalMode",
        );
    }
    Ok(done)
}

/// The chart's form of a value.
fn value_of(setting: &Setting) -> Value {
    let text = setting.value.as_str().unwrap_or_default();
    match setting.path {
        "clusterCIDR" => {
            let parts = text
                .split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty());
            parts.collect::<Vec<_>>().into()
        }
        "healthzBindAddress" => with_port(text, 10256).into(),
        "metricsBindAddress" => with_port(text, 10249).into(),
        _ => setting.value.clone(),
    }
}

/// An address with kube-proxy's port, if it has none.
fn with_port(text: &str, port: u16) -> String {
    match text.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => text.to_owned(),
    }
}

/// A value as the table of fields writes defaults.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => String::new(),
        other => other.to_string(),
    }
}

fn apply_rule(
    setting: &Setting,
    config: &Config,
    kubeconfig: Option<&str>,
    done: &mut Converted,
) -> Result<(), (&'static str, String)> {
    let path = setting.path;
    let text = setting.value.as_str().unwrap_or_default();
    match path {
        "clientConnection.kubeconfig" => match kubeconfig.and_then(server) {
            Some((host, port)) => {
                done.values.set("apiServer.host", host.into(), path);
                if port != 6443 {
                    done.values.set("apiServer.port", port.into(), path);
                }
            }
            None => done.note(
                path,
                "it names the API server; set apiServer.host and apiServer.port if the chart asks \
                 for them",
            ),
        },
        "logging.verbosity" if setting.value.as_u64() >= Some(DEBUG_VERBOSITY) => {
            done.values.set("log.level", "debug".into(), path);
        }
        "bindAddress" => {
            let address = text.parse::<IpAddr>();
            match address {
                Ok(ip) if ip.is_unspecified() => {}
                Ok(ip) => done
                    .values
                    .set("agent.nodeIPs", json!([ip.to_string()]), path),
                Err(_) => return Err((path, format!("{text:?} is not an address"))),
            }
        }
        "iptables.localhostNodePorts" if matches!(config.text("mode"), None | Some("iptables")) => {
            done.lost(
                path,
                "node ports on 127.0.0.1 exist in kube-proxy's iptables mode only",
            );
        }
        "mode" => match text {
            "ipvs" => {}
            "iptables" => other_mode(text, done),
            "nftables" => {
                done.values.set("agent.dataplane", text.into(), path);
                other_mode(text, done);
            }
            "kernelspace" => return Err((path, "kernelspace is for Windows nodes".to_owned())),
            _ => {
                let expected = "expected iptables, ipvs or nftables";
                return Err((path, format!("{text:?} is unknown: {expected}")));
            }
        },
        // Every other field has its counterpart in the table.
        _ => {}
    }
    Ok(())
}

/// The takeover from IPVS mode keeps more than that from other ones.
fn other_mode(mode: &str, done: &mut Converted) {
    done.note(
        "mode",
        format!(
            "from {mode} the takeover keeps connections, and ClientIP affinity begins anew; the migration \
             guide has the way back"
        ),
    );
}

/// Host and port of the API server that a kubeconfig names for its current context.
fn server(kubeconfig: &str) -> Option<(String, u16)> {
    let root = portolan_source::file::read_yaml(kubeconfig).ok()?;
    let named = |list: &str, name: &Value| {
        let found = root[list]
            .as_array()?
            .iter()
            .find(|one| one["name"] == *name)?;
        Some(found.clone())
    };
    let context = named("contexts", &root["current-context"])?;
    let cluster = named("clusters", &context["context"]["cluster"])?;
    let url = cluster["cluster"]["server"]
        .as_str()?
        .strip_prefix("https://")?;
    let authority = url.split('/').next()?;
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (authority, 443),
    };
    Some((host.trim_matches(['[', ']']).to_owned(), port))
}

#[cfg(test)]
mod tests;
