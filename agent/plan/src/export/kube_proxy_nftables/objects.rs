// SPDX-License-Identifier: Apache-2.0

//! Chains, sets and maps of one table, and their text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The objects of a table, by name.
#[derive(Debug, Default)]
pub(super) struct Objects {
    containers: BTreeMap<String, Container>,
    chains: BTreeMap<String, Chain>,
}

/// A set, or a map to verdicts.
#[derive(Debug)]
struct Container {
    keyword: &'static str,
    /// Lines of its declaration, without elements.
    lines: Vec<String>,
    /// Elements by key: comment and verdict follow the key.
    elements: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct Chain {
    /// Its hook, if it is a base chain.
    hook: Option<String>,
    comment: Option<&'static str>,
    rules: Vec<String>,
}

impl Objects {
    /// Declares a set. Lines stand in its declaration.
    pub(super) fn set(&mut self, name: &str, lines: &[&str]) {
        self.container("set", name, lines);
    }

    /// Declares a map.
    pub(super) fn map(&mut self, name: &str, lines: &[&str]) {
        self.container("map", name, lines);
    }

    fn container(&mut self, keyword: &'static str, name: &str, lines: &[&str]) {
        let container = Container {
            keyword,
            lines: lines.iter().map(|line| (*line).to_owned()).collect(),
            elements: BTreeMap::new(),
        };
        self.containers.insert(name.to_owned(), container);
    }

    /// Adds an element to a declared container. Of two with one key the first stays.
    pub(super) fn element(&mut self, container: &str, key: &str, rest: &str) {
        if let Some(container) = self.containers.get_mut(container) {
            let elements = container.elements.entry(key.to_owned());
            elements.or_insert_with(|| rest.to_owned());
        }
    }

    /// A base chain: type, hook and priority.
    pub(super) fn base(&mut self, name: &str, kind: &str, hook: &str, priority: &str) {
        let hook = format!("type {kind} hook {hook} priority {priority}; policy accept;");
        self.chain(name).hook = Some(hook);
    }

    /// A chain that exists without rules, too.
    pub(super) fn declare(&mut self, name: &str, comment: Option<&'static str>) {
        self.chain(name).comment = comment;
    }

    /// Adds a rule, of words of which any may be empty.
    pub(super) fn rule(&mut self, chain: &str, words: &[&str]) {
        let words = words.iter().filter(|word| !word.is_empty());
        let rule = words.copied().collect::<Vec<_>>().join(" ");
        self.chain(chain).rules.push(rule);
    }

    /// Adds a rule with a comment.
    pub(super) fn commented(&mut self, chain: &str, words: &[&str], comment: &str) {
        let comment = format!("comment \"{comment}\"");
        let words = [words, &[&comment]].concat();
        self.rule(chain, &words);
    }

    fn chain(&mut self, name: &str) -> &mut Chain {
        self.chains.entry(name.to_owned()).or_default()
    }

    /// The table as input of `nft -f`, in the place of one that is there.
    pub(super) fn text(&self, family: &str) -> String {
        let table = format!("table {family} kube-proxy");
        let mut text = format!("{table}\ndelete {table}\n\n{table} {{\n");
        text.push_str("\tcomment \"rules for kube-proxy\"\n");
        // Writing to a string never fails.
        for (name, container) in &self.containers {
            let _ = writeln!(text, "\n\t{} {name} {{", container.keyword);
            for line in &container.lines {
                let _ = writeln!(text, "\t\t{line}");
            }
            container.write_elements(&mut text);
            text.push_str("\t}\n");
        }
        for (name, chain) in &self.chains {
            let _ = writeln!(text, "\n\tchain {name} {{");
            if let Some(comment) = chain.comment {
                let _ = writeln!(text, "\t\tcomment \"{comment}\"");
            }
            for line in chain.hook.iter().chain(&chain.rules) {
                let _ = writeln!(text, "\t\t{line}");
            }
            text.push_str("\t}\n");
        }
        text.push_str("}\n");
        text
    }
}

impl Container {
    fn write_elements(&self, text: &mut String) {
        if self.elements.is_empty() {
            return;
        }
        text.push_str("\t\telements = {\n");
        for (key, rest) in &self.elements {
            let space = if rest.is_empty() { "" } else { " " };
            let _ = writeln!(text, "\t\t\t{key}{space}{rest},");
        }
        text.push_str("\t\t}\n");
    }
}

/// Text of a comment: names of Kubernetes objects have no quotes, but a file or a controller might.
pub(super) fn comment_text(text: &str) -> String {
    text.replace(|c: char| c.is_control() || matches!(c, '"' | '\\'), "?")
}
