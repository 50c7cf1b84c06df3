// SPDX-License-Identifier: Apache-2.0

//! The objects of files, as they are to be stored.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use portolan_director::{Already, File, Generation, parse as parse_files};
use portolan_etcd::Name;
use portolan_source::file;
use portolan_source::objects::Scope;
use serde_json::Value;

use super::args::Selector;
use super::store::Stored;

/// An object that is to be stored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    /// Its name.
    pub(crate) name: Name,
    /// The canonical object.
    pub(crate) value: Value,
    /// The version that the file says it is a change of.
    pub(crate) based_on: Option<i64>,
}

/// A file and its text.
pub(crate) type Text = (PathBuf, String);

/// Reads files, and all YAML and JSON files of directories.
pub(crate) fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<Text>> {
    let mut texts = Vec::new();
    for path in paths {
        let files = file::list(path).with_context(|| path.display().to_string())?;
        for file in files {
            let text =
                std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            texts.push((file, text));
        }
    }
    Ok(texts)
}

/// Parses files as the controller will. Objects of the files must fit the stored ones that stay, whose frontends are
/// taken.
///
/// # Errors
/// All that is wrong, as `FILE:LINE:COLUMN: FIELD: MESSAGE`.
pub(crate) fn parse(
    texts: &[Text],
    stored: &BTreeMap<Name, Stored>,
    prune: Option<&Selector>,
) -> anyhow::Result<Vec<Wanted>> {
    let first = generation(texts, &Already::default())?;
    let mut wanted = objects(first, texts)?;
    let is_kept = |name: &Name, stored: &Stored| {
        let is_pruned = prune.is_some_and(|labels| labels.selects(&stored.value));
        !is_pruned && wanted.iter().all(|wanted| wanted.name != *name)
    };
    let already = already(stored.iter().filter(|(name, stored)| is_kept(name, stored)));
    generation(texts, &already)?;
    wanted.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(twice) = wanted.windows(2).find(|pair| pair[0].name == pair[1].name) {
        bail!("{}: expected once", twice[0].name);
    }
    Ok(wanted)
}

/// The names of the objects of files that are to be deleted. Whether they may be written, and what stored objects
/// claim, is no matter to them.
///
/// # Errors
/// All that is wrong with the files, as [`parse`] tells it.
pub(crate) fn names(texts: &[Text]) -> anyhow::Result<Vec<Name>> {
    let generation = generation(texts, &Already::default())?;
    only_ours(&generation)?;
    let nodes = raw_nodes(texts)?.into_iter();
    let mut names: Vec<_> = nodes.map(|(name, _)| Name::Node(name)).collect();
    names.extend(
        generation
            .load_balancers
            .iter()
            .map(|each| Name::LoadBalancer {
                namespace: each.name.namespace.clone(),
                name: each.name.name.clone(),
            }),
    );
    let directors = generation.directors.into_iter();
    names.extend(directors.map(|each| Name::Director(each.name)));
    names.sort();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        bail!("{}: expected once", twice[0]);
    }
    Ok(names)
}

fn generation(texts: &[Text], already: &Already) -> anyhow::Result<Generation> {
    let named: Vec<_> = texts
        .iter()
        .map(|(path, text)| (path.display().to_string(), text))
        .collect();
    let files: Vec<_> = named
        .iter()
        .map(|(name, text)| File { name, text })
        .collect();
    parse_files(&files, already).map_err(|problems| failed(&problems))
}

/// All problems, one a line.
fn failed(problems: &[impl ToString]) -> anyhow::Error {
    let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
    anyhow::anyhow!("not applied:\n{}", lines.join("\n"))
}

/// Refuses objects of other kinds than those of a fleet.
fn only_ours(generation: &Generation) -> anyhow::Result<()> {
    for other in &generation.not_ours {
        if (other.api_version.as_str(), other.kind.as_str()) != ("v1", "Node") {
            let (file, at, kind) = (&other.file, other.at, &other.kind);
            bail!(
                "{file}:{}:{}: kind: {kind:?}: expected LoadBalancer, Director or Node",
                at.line,
                at.column
            );
        }
    }
    Ok(())
}

fn objects(generation: Generation, texts: &[Text]) -> anyhow::Result<Vec<Wanted>> {
    only_ours(&generation)?;
    let mut wanted = nodes(texts)?;
    let mut unsupported = Vec::new();
    for balancer in generation.load_balancers {
        let mut balancer = Arc::unwrap_or_clone(balancer);
        let name = Name::LoadBalancer {
            namespace: balancer.name.namespace.clone(),
            name: balancer.name.name.clone(),
        };
        let fields = portolan_director::unsupported_in_fleet(&balancer).into_iter();
        unsupported.extend(fields.map(|(field, why)| format!("{name}: {field}: {why}")));
        let based_on = balancer.tags.resource_version.take();
        let value = serde_json::to_value(balancer.to_document())?;
        wanted.push(Wanted {
            name,
            value,
            based_on,
        });
    }
    for mut director in generation.directors {
        let name = Name::Director(director.name.clone());
        let fields = portolan_director::unsupported_from_controller(&director).into_iter();
        unsupported.extend(fields.map(|(field, why)| format!("{name}: {field}: {why}")));
        let based_on = director.tags.resource_version.take();
        wanted.push(Wanted {
            name,
            value: serde_json::to_value(director.to_document())?,
            based_on,
        });
    }
    match &unsupported[..] {
        [] => Ok(wanted),
        problems => Err(failed(problems)),
    }
}

/// Nodes by name, as the files have them.
fn raw_nodes(texts: &[Text]) -> anyhow::Result<Vec<(String, Value)>> {
    let (mut nodes, mut problems) = (Vec::new(), Vec::new());
    for (path, text) in texts {
        match file::nodes(Path::new(path), text, &Scope::default()) {
            Ok(found) => nodes.extend(found),
            Err(found) => problems.extend(found.iter().map(ToString::to_string)),
        }
    }
    match &problems[..] {
        [] => Ok(nodes),
        problems => Err(failed(problems)),
    }
}

/// Nodes, without the fields of a server.
fn nodes(texts: &[Text]) -> anyhow::Result<Vec<Wanted>> {
    let (mut nodes, mut problems) = (Vec::new(), Vec::new());
    for (name, value) in raw_nodes(texts)? {
        let name = Name::Node(name);
        match node(name.clone(), value) {
            Ok(node) => nodes.push(node),
            Err((field, why)) => problems.push(format!("{name}: {field}: {why}")),
        }
    }
    match &problems[..] {
        [] => Ok(nodes),
        problems => Err(failed(problems)),
    }
}

/// A Node that is to be stored; or a field, and what is wrong with it.
fn node(name: Name, mut value: Value) -> Result<Wanted, (&'static str, &'static str)> {
    if matches!(&name, Name::Node(name) if name.is_empty() || name.contains('/')) {
        return Err(("metadata.name", "expected a name without \"/\""));
    }
    let mut based_on = None;
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        let version = metadata.remove("resourceVersion");
        // That of a Node of Kubernetes, which alone has a uid, is of another store.
        let is_foreign = metadata.remove("uid").is_some_and(|uid| !uid.is_null());
        let version = version.filter(|version| !is_foreign && !version.is_null());
        if let Some(version) = version {
            let wrong = (
                "metadata.resourceVersion",
                "expected at most 18 digits, in quotes",
            );
            based_on = Some(revision(&version).ok_or(wrong)?);
        }
        for field in ["creationTimestamp", "managedFields", "generation"] {
            metadata.remove(field);
        }
    }
    Ok(Wanted {
        name,
        value,
        based_on,
    })
}

/// The revision of etcd that a resource version is: as many digits as those of load balancers may have.
fn revision(version: &Value) -> Option<i64> {
    let text = version.as_str()?;
    let is_short = text.len() <= 18 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_short)
}

/// The stored load balancers and Directors. Values that cannot be read are left out: no host follows them.
fn already<'a>(stored: impl Iterator<Item = (&'a Name, &'a Stored)>) -> Already {
    let mut already = Already::default();
    for (name, stored) in stored {
        let text = stored.value.to_string();
        let file = File {
            name: "value.json",
            text: &text,
        };
        let read = parse_files(&[file], &Already::default()).unwrap_or_default();
        for balancer in read.load_balancers {
            let claims = balancer.frontends.iter().flat_map(|it| it.claims());
            let owned = claims.map(|claim| (claim, name.to_string()));
            already.claims.extend(owned);
            already.load_balancers.push(balancer);
        }
        already.directors.extend(read.directors);
    }
    already
}
