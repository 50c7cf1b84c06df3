// SPDX-License-Identifier: Apache-2.0

//! Files with a KubeProxyConfiguration: strict reading, field by field.

use std::collections::BTreeMap;

use portolan_source::file::{find_field, read_yaml};
use serde_json::Value;

use crate::duration;
use crate::field::{Field, Kind, Modes};
use crate::fields::FIELDS;

const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
const KIND: &str = "KubeProxyConfiguration";

/// A field that is set.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Its path.
    pub path: &'static str,
    /// Its value, of the field's type.
    pub value: Value,
}

/// The fields that are set: neither null, nor empty, nor kube-proxy's default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Config {
    settings: BTreeMap<&'static str, Value>,
}

/// Something wrong in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{}{}{message}", line.map(|line| format!("line {line}: ")).unwrap_or_default(),
    if path.is_empty() { String::new() } else { format!("{path}: ") })]
pub struct Problem {
    /// The line, if one is to blame.
    pub line: Option<u64>,
    /// The path of the field; empty if no field is to blame.
    pub path: String,
    /// The description.
    pub message: String,
}

/// A file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ConfigError(pub Vec<Problem>);

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

/// A value that is not of its field's type.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{value} is not {expected}")]
pub(crate) struct WrongType {
    value: Value,
    expected: Kind,
}

impl Config {
    /// The value of a field that is set.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Value> {
        self.settings.get(path)
    }

    /// The text of a field that is set.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        self.get(path).and_then(Value::as_str)
    }

    /// The settings, in the order of the table.
    pub fn settings(&self) -> impl Iterator<Item = Setting> + '_ {
        let set = |field: &Field| {
            let value = self.get(field.path)?.clone();
            let path = field.path;
            Some(Setting { path, value })
        };
        FIELDS.iter().filter_map(set)
    }

    /// Returns `true` if the mode of this configuration reads a field of these modes.
    #[must_use]
    pub fn reads(&self, modes: Modes) -> bool {
        let mode = self.text("mode").unwrap_or_default();
        match modes {
            Modes::All => true,
            Modes::Iptables => mode != "nftables",
            Modes::Ipvs => mode == "ipvs",
            Modes::Nftables => mode == "nftables",
        }
    }

    /// Sets what kube-proxy has in place of a field that is not set in its mode. In nftables mode node ports are at the
    /// node's primary addresses (kube-proxy: `cmd/kube-proxy/app/server_linux.go`, `platformApplyDefaults`).
    pub(crate) fn complete(mut self) -> Self {
        if self.text("mode") == Some("nftables") {
            let primary = || Value::from(["primary"].as_slice());
            let settings = &mut self.settings;
            settings.entry("nodePortAddresses").or_insert_with(primary);
        }
        self
    }

    /// Sets a field; an absent or default value unsets it.
    ///
    /// # Errors
    /// If the value is not of the field's type.
    pub(crate) fn set(&mut self, field: &'static Field, value: &Value) -> Result<(), WrongType> {
        self.settings.remove(field.path);
        if let Some(value) = typed(field, value)? {
            self.settings.insert(field.path, value);
        }
        Ok(())
    }
}

/// The value, if it counts as given.
fn typed(field: &Field, value: &Value) -> Result<Option<Value>, WrongType> {
    let wrong = || WrongType {
        value: value.clone(),
        expected: field.kind,
    };
    let text = match (field.kind, value) {
        (_, Value::Null) => return Ok(None),
        (Kind::Bool, Value::Bool(_)) => value.to_string(),
        (Kind::Integer, Value::Number(number)) if number.is_i64() => value.to_string(),
        (Kind::Number, Value::Number(_)) => value.to_string(),
        (Kind::Text, Value::String(text)) => text.clone(),
        // A quantity, which YAML may write without quotes.
        (Kind::Text, Value::Number(number)) if field.path.ends_with("BufferSize") => {
            number.to_string()
        }
        (Kind::Duration, Value::String(text)) => {
            let duration = duration::parse(text).ok_or_else(wrong)?;
            let rendered = duration::render(duration);
            let is_default = rendered == field.default;
            let is_zero = duration.is_zero() && !field.zero_counts;
            return Ok((!is_default && !is_zero).then(|| rendered.into()));
        }
        // Nanoseconds, as Go writes some durations.
        (Kind::Duration, Value::Number(number)) => {
            let nanos = number.as_u64().map(std::time::Duration::from_nanos);
            let text = nanos.map(duration::render).ok_or_else(wrong)?;
            return typed(field, &text.into());
        }
        (Kind::List, Value::Array(items)) => {
            let is_good = field.path == "logging.vmodule" || items.iter().all(Value::is_string);
            let given = || Ok((!items.is_empty()).then(|| value.clone()));
            return if is_good { given() } else { Err(wrong()) };
        }
        (Kind::Map, Value::Object(map)) => {
            return Ok((!map.is_empty()).then(|| value.clone()));
        }
        _ => return Err(wrong()),
    };
    let is_zero = matches!(text.as_str(), "" | "0" | "false") && !field.zero_counts;
    Ok((!is_zero && text != field.default).then(|| value.clone()))
}

/// Reads a configuration, or a ConfigMap with one in `config.conf` or `config`. With `lenient`, unknown
/// fields are returned instead of refused.
///
/// # Errors
/// All that is wrong.
pub fn parse(text: &str, lenient: bool) -> Result<(Config, Vec<Problem>), ConfigError> {
    let root = read_yaml(text).map_err(|(position, message)| Problem {
        line: position.map(|(line, _)| line),
        path: String::new(),
        message,
    })?;
    if root["kind"] == "ConfigMap" {
        let data = ["config.conf", "config"];
        let inner = data.iter().find_map(|key| root["data"][key].as_str());
        return match inner {
            Some(inner) => parse(inner, lenient),
            None => Err(wrong(text, "data", "neither config.conf nor config is there").into()),
        };
    }
    for (key, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        if root[key] != expected {
            let found = root[key].as_str().unwrap_or_default();
            return Err(wrong(text, key, &format!("{found:?}: expected {expected}")).into());
        }
    }
    let mut reader = Reader {
        text,
        config: Config::default(),
        unknown: Vec::new(),
        wrong: Vec::new(),
    };
    reader.read("", &root);
    if !lenient {
        reader.wrong.append(&mut reader.unknown);
    }
    reader.wrong.sort();
    match reader.wrong.is_empty() {
        true => Ok((reader.config.complete(), reader.unknown)),
        false => Err(ConfigError(reader.wrong)),
    }
}

fn wrong(text: &str, path: &str, message: &str) -> Problem {
    Problem {
        line: find_field(text, path).map(|(line, _)| line),
        path: path.to_owned(),
        message: message.to_owned(),
    }
}

struct Reader<'t> {
    text: &'t str,
    config: Config,
    unknown: Vec<Problem>,
    wrong: Vec<Problem>,
}

impl Reader<'_> {
    /// Reads the fields below a path.
    fn read(&mut self, prefix: &str, value: &Value) {
        let Value::Object(fields) = value else {
            if !value.is_null() {
                self.wrong.push(wrong(self.text, prefix, "expected a map"));
            }
            return;
        };
        for (name, value) in fields {
            let path = match prefix {
                "" => name.clone(),
                _ => format!("{prefix}.{name}"),
            };
            if let Some(field) = Field::at(&path) {
                if let Err(error) = self.config.set(field, value) {
                    self.wrong.push(wrong(self.text, &path, &error.to_string()));
                }
            } else if is_group(&path) {
                self.read(&path, value);
            } else if !matches!(path.as_str(), "apiVersion" | "kind") {
                self.unknown.push(wrong(self.text, &path, "unknown field"));
            }
        }
    }
}

/// Returns `true` if fields are below the path.
fn is_group(path: &str) -> bool {
    FIELDS.iter().any(|field| {
        let rest = field.path.strip_prefix(path);
        rest.is_some_and(|rest| rest.starts_with('.'))
    })
}
