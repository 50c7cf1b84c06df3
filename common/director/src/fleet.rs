// SPDX-License-Identifier: Apache-2.0

//! A `Director` that a controller sends to its host: the text on the wire, and what may be in it.
//!
//! The right to write objects of a fleet is no right to run programs on its hosts. So fields that name programs,
//! users or paths of the host are refused by the controller, and by the host again.

use crate::{Already, Director, File, parse};

/// The largest text of a Director on the wire, in bytes.
pub const MAX_SENT_BYTES: usize = 64 * 1024;

impl Director {
    /// The text for its host: canonical JSON, equal for equal settings. Labels, annotations and the version stay with
    /// the controller.
    #[must_use]
    pub fn to_sent(&self) -> String {
        let bare = Self {
            tags: crate::Tags::default(),
            ..self.clone()
        };
        // Documents have only maps with text keys, lists and scalars, all of which JSON has.
        serde_json::to_string(&bare.to_document()).unwrap_or_default()
    }

    /// Reads [`Self::to_sent`] on a host.
    ///
    /// # Errors
    /// All that is wrong, with the object and the field. Nothing of it is to be followed then.
    pub fn from_sent(text: &[u8], host: &str) -> Result<Self, SentError> {
        let problem = |why: &str| {
            Err(SentError {
                host: host.to_owned(),
                why: why.to_owned(),
            })
        };
        if text.len() > MAX_SENT_BYTES {
            return problem(&too_large(text.len()));
        }
        let Ok(text) = str::from_utf8(text) else {
            return problem("not text");
        };
        let file = File {
            name: "director.json",
            text,
        };
        let generation = match parse(&[file], &Already::default()) {
            Ok(generation) => generation,
            Err(found) => {
                let found = found.iter().map(|it| match &*it.field {
                    "" => it.message.clone(),
                    field => format!("{field}: {}", it.message),
                });
                return problem(&found.collect::<Vec<_>>().join("; "));
            }
        };
        let mut directors = generation.directors.into_iter();
        let (Some(director), None) = (directors.next(), directors.next()) else {
            return problem("expected one Director");
        };
        if director.name != host {
            return problem(&format!(
                "metadata.name: {:?}: expected this host's",
                director.name
            ));
        }
        match &unsupported_from_controller(&director)[..] {
            [] => Ok(director),
            found => {
                let found = found.iter().map(|(field, why)| format!("{field}: {why}"));
                problem(&found.collect::<Vec<_>>().join("; "))
            }
        }
    }
}

/// Reason why a host cannot follow a `Director` that it was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Director {host}: {why}")]
pub struct SentError {
    host: String,
    /// All that is wrong, by field.
    why: String,
}

fn too_large(bytes: usize) -> String {
    format!("{bytes} bytes: expected at most {MAX_SENT_BYTES}")
}

/// The fields of a Director that a host does not take from a controller, and why.
#[must_use]
pub fn unsupported_from_controller(director: &Director) -> Vec<(String, String)> {
    let local = "not supported here: hosts take programs and paths from their own files alone";
    let scripts = &director.scripts;
    let is_set = [
        (
            "spec.maintenanceDirectory",
            director.maintenance_directory.is_some(),
        ),
        ("spec.scripts.user", scripts.user.is_some()),
        ("spec.scripts.directories", !scripts.directories.is_empty()),
    ];
    let set = is_set.into_iter().filter(|(_, is_set)| *is_set);
    let mut found: Vec<_> = set
        .map(|(field, _)| (field.to_owned(), local.to_owned()))
        .collect();
    let bytes = director.to_sent().len();
    if bytes > MAX_SENT_BYTES {
        found.push(("spec".to_owned(), too_large(bytes)));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Sync;

    fn director() -> Director {
        let mut director = Director::new("lb-1");
        director.sync = Some(Sync::new("eth1"));
        director.announce_table = 199;
        director.checks_on_standby = false;
        director.checks.defaults.timers.fall = 9;
        director.checks.defaults.source.mark = Some(1);
        director
            .sysctls
            .values
            .insert("net.ipv4.vs.sloppy_tcp".to_owned(), "1".to_owned());
        director
    }

    #[test]
    fn a_host_reads_the_settings_that_were_sent_and_no_labels() {
        let sent = director();
        let mut tagged = sent.clone();
        tagged.tags.annotations = BTreeMap::from([("password".to_owned(), "x".to_owned())]);
        assert_eq!(tagged.to_sent(), sent.to_sent());
        let read = Director::from_sent(sent.to_sent().as_bytes(), "lb-1");
        assert_eq!(read, Ok(sent));
    }

    #[test]
    fn a_director_that_a_host_cannot_follow_is_refused_by_name_and_field() {
        let sent = director().to_sent();
        let newer = sent.replace("\"announceTable\"", "\"teleport\"");
        let cases: [(&[u8], &str); 5] = [
            (sent.as_bytes(), "Director lb-2: metadata.name: \"lb-1\""),
            (newer.as_bytes(), "spec.teleport: unknown field"),
            (b"\xff", "Director lb-1: not text"),
            (b"{", "Director lb-1: "),
            (&[b' '; MAX_SENT_BYTES + 1], "65537 bytes"),
        ];
        for (index, (text, expected)) in cases.into_iter().enumerate() {
            let host = if index == 0 { "lb-2" } else { "lb-1" };
            let error = Director::from_sent(text, host).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn programs_and_paths_of_a_host_are_never_taken_from_afar() {
        let mut director = director();
        assert_eq!(unsupported_from_controller(&director), []);
        director.scripts.user = Some("root".to_owned());
        director.scripts.directories = vec!["/tmp".to_owned()];
        director.maintenance_directory = Some("/etc".to_owned());
        let fields: Vec<_> = unsupported_from_controller(&director)
            .into_iter()
            .map(|(field, _)| field)
            .collect();
        let expected = [
            "spec.maintenanceDirectory",
            "spec.scripts.user",
            "spec.scripts.directories",
        ];
        assert_eq!(fields, expected);
        // Whoever sends it: the host refuses it too.
        let error = Director::from_sent(director.to_sent().as_bytes(), "lb-1").unwrap_err();
        let error = error.to_string();
        assert!(
            expected.iter().all(|field| error.contains(field)),
            "{error}"
        );
    }

    #[test]
    fn a_director_that_is_too_large_for_a_frame_is_refused() {
        let mut director = director();
        let values = (0..3000).map(|i| (format!("net.ipv4.neigh.eth{i}.x"), "1".to_owned()));
        director.sysctls.values = values.collect();
        let found = unsupported_from_controller(&director);
        assert_eq!((found.len(), &*found[0].0), (1, "spec"));
    }
}
