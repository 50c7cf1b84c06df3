// SPDX-License-Identifier: Apache-2.0

//! `portolanctl version`.

use portolan_runtime::BUILD;
use serde_json::{Value, json};

use crate::answers::UNANSWERED;
use crate::client::Client;
use crate::reply::Reply;

/// The version of portolanctl alone.
pub(crate) fn of_client() -> Reply {
    let client = client();
    let text = line("portolanctl", &client);
    Reply::new(json!({ "client": client }), text)
}

/// The versions of portolanctl and of each controller. One that does not answer has the error in its line.
pub(crate) async fn run(clients: &[Client]) -> anyhow::Result<Reply> {
    let client = client();
    let mut text = line("portolanctl", &client);
    let mut controllers = Vec::new();
    let mut code = 0;
    for one in clients {
        let mut version = match one.get("/debug/version").await {
            Ok(version) => version,
            Err(error) if clients.len() == 1 => return Err(error),
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        match version["error"].as_str() {
            Some(error) => {
                text.push_str(&format!("{}: {error}\n", one.name()));
                code = UNANSWERED;
            }
            None => text.push_str(&line(&one.name(), &version)),
        }
        version["controller"] = one.name().into();
        controllers.push(version);
    }
    let value = json!({ "client": client, "controllers": controllers });
    Ok(Reply::new(value, text).with_code(code))
}

fn client() -> Value {
    json!({ "version": BUILD.version, "revision": BUILD.revision, "rustc": BUILD.rustc })
}

fn line(name: &str, version: &Value) -> String {
    let text = |field: &str| version[field].as_str().unwrap_or_default();
    let revision = match text("revision") {
        "" => String::new(),
        revision => format!(" {revision}"),
    };
    format!(
        "{name}: {}{revision} ({})\n",
        text("version"),
        text("rustc")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_a_revision_has_none() {
        let version = json!({ "version": "1.2.3", "revision": "", "rustc": "rustc 1.95.0" });
        assert_eq!(line("a", &version), "a: 1.2.3 (rustc 1.95.0)\n");
        let version = json!({ "version": "1.2.3", "revision": "abc", "rustc": "rustc 1.95.0" });
        assert_eq!(line("a", &version), "a: 1.2.3 abc (rustc 1.95.0)\n");
        assert!(of_client().text.starts_with("portolanctl: "));
    }
}
