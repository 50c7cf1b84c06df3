// SPDX-License-Identifier: Apache-2.0

//! `portolan-controller crds`: the definitions of the policy's resources.

use std::io::Write;

use anyhow::Context as _;
use portolan_policy::crd::definitions;

/// Prints the definitions as documents of YAML.
///
/// # Errors
/// If they cannot be written.
pub(crate) fn print(output: &mut impl Write) -> anyhow::Result<()> {
    for definition in definitions() {
        let options = serde_saphyr::ser_options! {
            prefer_block_scalars: false,
        };
        let text = serde_saphyr::to_string_with_options(&definition, options)?;
        write!(output, "---\n{text}").context("stdout")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_definitions_are_printed_as_documents_that_say_the_same() {
        let mut text = Vec::new();
        print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let documents = text.split("---\n").filter(|part| !part.is_empty());
        let printed: Vec<Value> = documents
            .map(|part| serde_saphyr::from_str(part).unwrap())
            .collect();
        assert_eq!(printed, definitions());
        // Other readers of YAML take it for a truth value.
        assert!(!text.contains("- Off\n"), "{text}");
    }
}
