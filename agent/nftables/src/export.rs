// SPDX-License-Identifier: Apache-2.0

//! A node's table in the words of `nft`.

use portolan_model::{Families, NodeTable};
use portolan_netlink::nftables::NoText;
use portolan_plan::export::Export;
use portolan_plan::{Config, NodeFacts};

use crate::{TABLE, Ways, desire};

/// Our tables of some families, as input of `nft -f`, for a kernel without one.
///
/// # Errors
/// If a rule has no text, which is a mistake of this program.
pub fn export(
    table: &NodeTable,
    facts: &NodeFacts,
    config: &Config,
    families: Families,
) -> Result<Export, NoText> {
    let ways = Ways::new(table, facts);
    let mut export = Export {
        text: String::new(),
        notes: ways.refused.iter().map(ToString::to_string).collect(),
    };
    for family in families.iter() {
        let desired = desire(family, &ways, config, &table.node, None);
        export.text.push_str(&desired.content.text(family, TABLE)?);
    }
    Ok(export)
}
