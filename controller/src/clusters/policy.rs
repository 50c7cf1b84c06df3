// SPDX-License-Identifier: Apache-2.0

//! Policy objects in files, read again whenever a file changes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use portolan_policy::{File as Text, Objects, read_after};
use portolan_source::file::list;

/// Longest file in bytes.
const MAX_FILE: u64 = 16 << 20;

/// Files of policy objects, and the objects in force: of each the last good version.
#[derive(Debug)]
pub(super) struct PolicyFiles {
    paths: Vec<PathBuf>,
    texts: BTreeMap<PathBuf, String>,
    unreadable: Vec<String>,
    is_read: bool,
    /// Completeness of the texts: every object of them is in force, in some version.
    is_whole: bool,
    objects: Objects,
    problems: Vec<String>,
}

impl PolicyFiles {
    pub(super) fn new(paths: Vec<PathBuf>) -> Self {
        Self {
            paths,
            texts: BTreeMap::new(),
            unreadable: Vec::new(),
            is_read: false,
            is_whole: false,
            objects: Objects::default(),
            problems: Vec::new(),
        }
    }

    /// The objects in force.
    pub(super) fn objects(&self) -> &Objects {
        &self.objects
    }

    /// All that is wrong.
    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Returns `true` if every file could be read since the start, and each of its objects is in force. Before
    /// that an object that is missing may be in a file that is late, or be one that is bad.
    pub(super) fn is_complete(&self) -> bool {
        self.is_read && self.is_whole && self.unreadable.is_empty()
    }

    /// Reads the files; returns whether anything changed. Blocks.
    pub(super) fn refresh(&mut self) -> bool {
        let (texts, unreadable) = self.read_texts();
        if self.is_read && texts == self.texts && unreadable == self.unreadable {
            return false;
        }
        (self.texts, self.unreadable, self.is_read) = (texts, unreadable, true);
        self.judge();
        true
    }

    fn read_texts(&self) -> (BTreeMap<PathBuf, String>, Vec<String>) {
        let (mut texts, mut unreadable) = (BTreeMap::new(), Vec::new());
        let mut note = |path: &Path, error: &dyn std::fmt::Display| {
            unreadable.push(format!(
                "{}: {error}; its objects stay as they were",
                path.display()
            ));
        };
        for root in &self.paths {
            let files = list(root).unwrap_or_else(|error| {
                note(root, &error);
                let known = self.texts.keys().filter(|path| path.starts_with(root));
                known.cloned().collect()
            });
            for path in files {
                let before = self.texts.get(&path);
                match (read_text(&path), before) {
                    // Most likely it is being written in place. A comment makes an empty file valid.
                    (Ok(text), Some(before))
                        if text.trim().is_empty() && !before.trim().is_empty() =>
                    {
                        note(&path, &"empty");
                        texts.insert(path, before.clone());
                    }
                    (Ok(text), _) => {
                        texts.insert(path, text);
                    }
                    (Err(error), before) => {
                        note(&path, &error);
                        texts.extend(before.map(|text| (path, text.clone())));
                    }
                }
            }
        }
        (texts, unreadable)
    }

    fn judge(&mut self) {
        let names: Vec<_> = self
            .texts
            .keys()
            .map(|path| path.display().to_string())
            .collect();
        let files = names.iter().zip(self.texts.values());
        let files: Vec<_> = files.map(|(name, text)| Text { name, text }).collect();
        let reading = read_after(&files, &self.objects);
        let mut problems = self.unreadable.clone();
        problems.extend(reading.problems.iter().map(ToString::to_string));
        let others = reading.not_ours.iter().map(|other| {
            let (file, line) = (&other.file, other.at.line);
            format!("{file}:{line}: {} is no object of the policy", other.kind)
        });
        problems.extend(others);
        let (refused, is_incomplete) = (reading.refused(), reading.is_incomplete());
        let (objects, faults) = reading.in_force(&self.objects);
        // A process that begins has no last good versions.
        let left_out = faults.iter().map(|found| &found.object);
        let mut refused = refused.iter().chain(left_out);
        self.is_whole = !is_incomplete && refused.all(|name| objects.get(name).is_some());
        problems.extend(
            faults
                .iter()
                .map(|found| format!("{}: {}", found.object, found.fault)),
        );
        (self.objects, self.problems) = (objects, problems);
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?
        .take(MAX_FILE + 1)
        .read_to_string(&mut text)?;
    if u64::try_from(read).unwrap_or(u64::MAX) > MAX_FILE {
        let message = format!("longer than {MAX_FILE} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn cluster(name: &str, pods: &str) -> String {
        format!(
            "apiVersion: portolan.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}}}\nspec:\n  \
             access: {{files: [{name}.yaml]}}\n  network: {{podCIDRs: [{pods}]}}\n---\n"
        )
    }

    fn names(files: &PolicyFiles) -> Vec<&str> {
        files
            .objects()
            .clusters
            .keys()
            .map(String::as_str)
            .collect()
    }

    #[test]
    fn a_bad_change_leaves_what_was_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.yaml");
        let mut files = PolicyFiles::new(vec![path.clone()]);
        assert!(files.refresh());
        assert!(!files.is_complete() && files.problems()[0].contains("policy.yaml"));

        let good = [
            cluster("eu-1", "10.1.0.0/16"),
            cluster("us-1", "10.2.0.0/16"),
        ]
        .concat();
        fs::write(&path, &good).unwrap();
        assert!(files.refresh());
        assert!(files.is_complete() && !files.refresh());
        assert_eq!(names(&files), ["eu-1", "us-1"]);
        assert_eq!(files.problems(), [""; 0]);
        let in_force = files.objects().clone();

        let bad = [
            cluster("eu-1", "10.1.0.1/16"),
            cluster("ap-1", "10.3.0.0/16"),
        ]
        .concat();
        for (text, problem, expected) in [
            // A network with host bits: its Cluster stays, another one joins, one left.
            (bad.as_str(), "podCIDRs", &["ap-1", "eu-1"][..]),
            ("kind: [", "policy.yaml:1:", &["ap-1", "eu-1"]),
            ("", "empty", &["ap-1", "eu-1"]),
            ("# none any more", "", &[]),
        ] {
            fs::write(&path, text).unwrap();
            assert!(files.refresh());
            assert_eq!(names(&files), expected, "{text:?}: {:?}", files.problems());
            match problem {
                "" => assert_eq!(files.problems(), [""; 0]),
                problem => assert!(
                    files.problems()[0].contains(problem),
                    "{:?}",
                    files.problems()
                ),
            }
            if let Some(kept) = files.objects().clusters.get("eu-1") {
                assert_eq!(Some(kept), in_force.clusters.get("eu-1"));
            }
        }
    }

    #[test]
    fn a_policy_with_a_bad_object_is_complete_if_an_earlier_version_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.yaml");
        let eu = cluster("eu-1", "10.1.0.0/16");
        let good = [eu.as_str(), &cluster("us-1", "10.2.0.0/16")].concat();
        // A network with host bits.
        let bad = [eu.as_str(), &cluster("us-1", "10.2.0.1/16")].concat();
        for (text, expected) in [(bad.as_str(), &["eu-1"][..]), ("kind: [", &[])] {
            fs::write(&path, text).unwrap();
            let mut files = PolicyFiles::new(vec![path.clone()]);
            assert!(files.refresh());
            assert_eq!(names(&files), expected);
            assert!(!files.is_complete(), "{text:?}: {:?}", files.problems());

            fs::write(&path, &good).unwrap();
            assert!(files.refresh() && files.is_complete());
            fs::write(&path, &bad).unwrap();
            assert!(files.refresh() && files.is_complete());
            assert_eq!(names(&files), ["eu-1", "us-1"]);
            assert!(files.problems()[0].contains("podCIDRs"));
        }
    }

    #[test]
    fn a_new_cluster_that_is_left_out_leaves_the_policy_incomplete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.yaml");
        let prod = cluster("prod", "10.1.0.0/16");
        fs::write(&path, &prod).unwrap();
        let mut files = PolicyFiles::new(vec![path.clone()]);
        assert!(files.refresh() && files.is_complete());

        let both = |pods: &str| [cluster("dev", pods), prod.clone()].concat();
        fs::write(&path, both("10.1.0.0/16")).unwrap();
        assert!(files.refresh() && !files.is_complete());
        assert_eq!(names(&files), ["prod"]);
        let problem = &files.problems()[0];
        assert!(
            problem.starts_with("Cluster dev: spec.network.podCIDRs"),
            "{problem}"
        );
        fs::write(&path, both("10.2.0.0/16")).unwrap();
        assert!(files.refresh() && files.is_complete());
        assert_eq!(names(&files), ["dev", "prod"]);
    }

    #[test]
    fn load_balancers_are_named_as_objects_of_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.yaml");
        let other = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n";
        fs::write(
            &path,
            [cluster("eu-1", "10.1.0.0/16").as_str(), other].concat(),
        )
        .unwrap();
        let mut files = PolicyFiles::new(vec![dir.path().to_owned()]);
        assert!(files.refresh());
        assert_eq!(names(&files), ["eu-1"]);
        assert!(files.problems()[0].contains("Service is no object of the policy"));
    }
}
