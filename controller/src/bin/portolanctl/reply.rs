// SPDX-License-Identifier: Apache-2.0

//! The result of a command, and its formats.

use clap::ValueEnum;
use serde_json::Value;

/// Output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Columns.
    #[value(alias = "text")]
    Table,
    /// Columns, with more of them.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
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
}

impl Reply {
    pub(crate) fn new(value: Value, text: String) -> Self {
        let code = 0;
        Self { value, text, code }
    }

    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    pub(crate) fn format(&self, output: Output) -> anyhow::Result<String> {
        Ok(match output {
            Output::Table | Output::Wide => self.text.clone(),
            Output::Json => serde_json::to_string_pretty(&self.value)? + "\n",
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
        let yaml = reply.format(Output::Yaml).unwrap();
        let read: Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(read, reply.value, "{yaml}");
    }
}
