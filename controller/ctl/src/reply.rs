// SPDX-License-Identifier: Apache-2.0

//! The result of a command, and its formats.

use std::io::Write as _;

use clap::ValueEnum;
use serde_json::Value;

/// Output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Columns.
    #[value(aliases = ["text", "env"])]
    Table,
    /// Columns, with more of them.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// For table: rules of a kube-proxy in iptables mode, for iptables-restore --noflush.
    Iptables,
    /// For table: the tables of agents with --dataplane nftables, for nft -f.
    Nft,
    /// For table: virtual servers, for ipvsadm -R.
    Ipvsadm,
}

impl Output {
    /// Returns `true` if it is another program's format, in which only a node's table can be
    /// printed.
    pub(crate) fn is_export(self) -> bool {
        matches!(self, Self::Iptables | Self::Nft | Self::Ipvsadm)
    }
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reply {
    /// For programs.
    pub(crate) value: Value,
    /// For people.
    pub(crate) text: String,
    /// The exit code.
    pub(crate) code: u8,
    /// Sentences for the standard error output.
    pub(crate) notes: Vec<String>,
    /// Whether the items of a list are documents of their own in YAML.
    is_documents: bool,
}

impl Reply {
    pub(crate) fn new(value: Value, text: String) -> Self {
        Self {
            value,
            text,
            code: 0,
            notes: Vec::new(),
            is_documents: false,
        }
    }

    /// A list whose items are documents of their own in YAML.
    pub(crate) fn of_documents(self) -> Self {
        Self {
            is_documents: true,
            ..self
        }
    }

    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    pub(crate) fn with_notes(self, notes: Vec<String>) -> Self {
        Self { notes, ..self }
    }

    /// Writes the notes, one a line.
    pub(crate) fn write_notes(&self) {
        for note in &self.notes {
            // Nothing is left to do if this fails.
            let _ = writeln!(std::io::stderr(), "portolanctl: {note}");
        }
    }

    pub(crate) fn format(&self, output: Output) -> anyhow::Result<String> {
        Ok(match output {
            Output::Iptables | Output::Nft | Output::Ipvsadm | Output::Table | Output::Wide => {
                self.text.clone()
            }
            Output::Json => serde_json::to_string_pretty(&self.value)? + "\n",
            Output::Yaml if self.is_documents && self.value.is_array() => {
                let items = self.value.as_array().into_iter().flatten();
                let texts = items.map(serde_saphyr::to_string);
                texts.collect::<Result<Vec<_>, _>>()?.join("---\n")
            }
            Output::Yaml => {
                let text = serde_saphyr::to_string(&self.value)?;
                format!("{}\n", text.trim_end())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reply_has_a_form_for_people_and_for_programs() {
        let reply = Reply::new(json!({"nodes": [{"node": "a"}]}), "NODE\na\n".to_owned());
        assert_eq!(reply.format(Output::Wide).unwrap(), "NODE\na\n");
        let json = reply.format(Output::Json).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), reply.value);
        let list = Reply::new(json!([{"a": 1}, {"b": 2}]), String::new()).of_documents();
        assert_eq!(list.format(Output::Yaml).unwrap(), "a: 1\n---\nb: 2\n");
        let yaml = reply.format(Output::Yaml).unwrap();
        let read: Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(read, reply.value, "{yaml}");
    }
}
