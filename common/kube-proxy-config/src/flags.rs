// SPDX-License-Identifier: Apache-2.0

//! Flags of kube-proxy as a configuration.

use serde_json::{Value, json};

use crate::config::{Config, ConfigError, Problem};
use crate::field::{Field, Kind};
use crate::fields::FIELDS;

/// Flags that make kube-proxy do something else than run with these settings.
const OTHERS: [(&str, &str); 5] = [
    ("config", "convert that file instead"),
    ("write-config-to", "it writes a file and ends"),
    ("cleanup", "it cleans up and ends"),
    ("init-only", "it prepares the node and ends"),
    ("version", "it prints the version and ends"),
];

/// Parses the flags of a command line. Quotes group words, as in a shell.
///
/// # Errors
/// All flags that cannot be used.
pub fn parse_flags(text: &str) -> Result<Config, ConfigError> {
    let mut config = Config::default();
    let mut problems = Vec::new();
    let mut words = words(text).into_iter().peekable();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            problems.push(problem(&word, "expected a flag"));
            continue;
        };
        let (name, given) = match flag.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (flag.to_owned(), None),
        };
        let known = FIELDS
            .iter()
            .find(|field| field.flag == name && !name.is_empty());
        let Some(field) = known else {
            let other = OTHERS.iter().find(|(other, _)| *other == name);
            let reason = other.map_or("unknown flag of kube-proxy", |(_, reason)| reason);
            problems.push(problem(&format!("--{name}"), reason));
            continue;
        };
        let value = match given {
            Some(value) => value,
            None if field.kind == Kind::Bool => "true".to_owned(),
            None => words.next().unwrap_or_default(),
        };
        if let Err(error) = config.set(field, &value_of(field, &value)) {
            problems.push(problem(&format!("--{name}"), &error.to_string()));
        }
    }
    match problems.is_empty() {
        true => Ok(config.complete()),
        false => Err(ConfigError(problems)),
    }
}

fn problem(path: &str, message: &str) -> Problem {
    Problem {
        line: None,
        path: path.to_owned(),
        message: message.to_owned(),
    }
}

/// The value of a flag, of its field's type where it has that form.
fn value_of(field: &Field, text: &str) -> Value {
    let parsed = || serde_json::from_str::<Value>(text).unwrap_or_else(|_| text.into());
    let parts = || {
        text.split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
    };
    match field.kind {
        Kind::Bool => match text {
            "true" | "t" | "T" | "1" | "True" | "TRUE" => true.into(),
            "false" | "f" | "F" | "0" | "False" | "FALSE" => false.into(),
            other => other.into(),
        },
        Kind::Integer | Kind::Number => parsed(),
        Kind::Text | Kind::Duration => text.into(),
        Kind::List => parts().collect::<Vec<_>>().into(),
        Kind::Map => {
            let pairs = parts().map(|part| part.split_once('=').unwrap_or((part, "true")));
            pairs
                .map(|(key, value)| (key.to_owned(), json!(value)))
                .collect()
        }
    }
}

/// The words of a command line.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in text.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_fields() {
        let text = "--proxy-mode=ipvs --cluster-cidr '10.0.0.0/8, fd00::/8' --masquerade-all \
            -v 4 --ipvs-strict-arp=true --conntrack-min=0 --nodeport-addresses=primary \
            --ipvs-tcp-timeout \"15m0s\" --ipvs-scheduler= --feature-gates=A=true,B=false";
        let config = parse_flags(text).unwrap();
        let found = |path: &str| config.get(path).cloned();
        for (path, expected) in [
            ("mode", json!("ipvs")),
            ("clusterCIDR", json!("10.0.0.0/8, fd00::/8")),
            ("iptables.masqueradeAll", json!(true)),
            ("logging.verbosity", json!(4)),
            ("ipvs.strictARP", json!(true)),
            ("conntrack.min", json!(0)),
            ("nodePortAddresses", json!(["primary"])),
            ("ipvs.tcpTimeout", json!("15m")),
            ("featureGates", json!({"A": "true", "B": "false"})),
        ] {
            assert_eq!(found(path), Some(expected), "{path}");
        }
        assert_eq!(config.settings().count(), 9);
    }

    #[test]
    fn unusable_flags_are_named() {
        let error =
            parse_flags("--ipvs-shceduler=rr x --config=f --conntrack-min=many").unwrap_err();
        let lines: Vec<_> = error.0.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "--ipvs-shceduler: unknown flag of kube-proxy",
                "x: expected a flag",
                "--config: convert that file instead",
                "--conntrack-min: \"many\" is not an integer",
            ]
        );
    }
}
