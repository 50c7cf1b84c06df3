// SPDX-License-Identifier: Apache-2.0

//! The value of a key.

use serde::{Deserialize, Serialize};

/// A SkyDNS message. Fields with their default are left out, as CoreDNS does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Message {
    /// An address (A, AAAA, and an SRV record to the key's own name) or a name (CNAME, PTR, or an
    /// SRV record's target).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The port of the SRV record; -1 for none.
    #[serde(skip_serializing_if = "is_default")]
    pub port: i32,
    /// The priority of the SRV record.
    #[serde(skip_serializing_if = "is_default")]
    pub priority: u16,
    /// A TXT record. Not together with `host`: that would hide a CNAME.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// TTL of the answer, in seconds; 0 stands for the plugin's default of 300.
    #[serde(skip_serializing_if = "is_default")]
    pub ttl: u32,
    /// Number of labels that the SRV record's target has fewer than the key's own name.
    #[serde(rename = "targetstrip", skip_serializing_if = "is_default")]
    pub target_strip: u8,
    /// Of all messages below a name, the plugin takes those of the topmost one's group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Message {
    /// The value of the key, in JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Every field has a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }
}
