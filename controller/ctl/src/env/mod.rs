// SPDX-License-Identifier: Apache-2.0

//! `portolanctl env`: the environment variables that pods have for Services.

mod variables;

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::ListParams;
use portolan_source::{file, kubernetes};
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::args::ConnectArgs;
use crate::reply::Reply;
use variables::{Pods, Variable, variables};

/// Longest file in bytes.
const MAX_FILE: u64 = 64 << 20;
/// Services that one answer of the API server has.
const PAGE: u32 = 500;
/// The namespace without a flag.
const NAMESPACE: &str = "default";

/// Arguments of `env`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct EnvArgs {
    /// A file or directory with Services (YAML or JSON, also lists as kubectl prints them), or - for the standard
    /// input; may be repeated. Without it the API server of --kubeconfig and --context is asked.
    #[arg(short, long, value_name = "PATH", value_delimiter = ',')]
    file: Vec<PathBuf>,

    /// As for pods with enableServiceLinks: false, which have variables for the API server alone.
    #[arg(long)]
    no_service_links: bool,
}

/// Prints the variables of a namespace's pods.
pub(crate) async fn run(connect: &ConnectArgs, args: &EnvArgs) -> anyhow::Result<Reply> {
    if connect.cluster().is_some() {
        bail!(
            "--cluster: the tables of a controller have no Services; name the cluster's API server by \
             --kubeconfig or --context, or its files by --file"
        );
    }
    let services = match args.file.as_slice() {
        [] => of_cluster(connect).await?,
        paths => of_files(paths)?,
    };
    let pods = Pods {
        namespace: connect.namespace.as_deref().unwrap_or(NAMESPACE),
        has_links: !args.no_service_links,
    };
    Ok(show(&variables(&services, pods)?))
}

fn show(variables: &[Variable]) -> Reply {
    let lines = variables
        .iter()
        .map(|Variable { name, value }| format!("{name}={value}\n"));
    let members = variables
        .iter()
        .map(|it| (it.name.clone(), it.value.clone().into()));
    Reply::new(
        Value::Object(members.collect::<Map<_, _>>()),
        lines.collect(),
    )
}

/// All Services of the API server, in pages.
async fn of_cluster(connect: &ConnectArgs) -> anyhow::Result<Vec<Service>> {
    let (kubeconfig, context) = (connect.kubeconfig.as_deref(), connect.context.as_deref());
    let client = kubernetes::client(kubeconfig, context).await?;
    let list = list_all(Api::all(client));
    let listed = timeout(connect.timeout, list).await;
    listed.context("the API server does not answer in time")?
}

async fn list_all(api: Api<Service>) -> anyhow::Result<Vec<Service>> {
    let (mut all, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let page = api.list(&params).await.context("cannot list Services")?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => params = params.continue_token(&more),
            None => return Ok(all),
        }
    }
}

/// The Services of files; objects of other kinds are skipped.
fn of_files(paths: &[PathBuf]) -> anyhow::Result<Vec<Service>> {
    let mut all = Vec::new();
    for root in paths {
        if root.as_os_str() == "-" {
            let text = bounded(std::io::stdin().lock()).context("standard input")?;
            all.extend(parse(&text).context("standard input")?);
            continue;
        }
        let files = file::list(root).with_context(|| root.display().to_string())?;
        for path in files {
            let name = || path.display().to_string();
            let text = File::open(&path).map_err(Into::into).and_then(bounded);
            let text = text.with_context(name)?;
            all.extend(parse(&text).with_context(name)?);
        }
    }
    Ok(all)
}

/// Reads a text of bounded length.
fn bounded(from: impl Read) -> anyhow::Result<String> {
    let mut text = String::new();
    let length = from.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if length as u64 > MAX_FILE {
        bail!("expected at most {MAX_FILE} bytes");
    }
    Ok(text)
}

/// The Services of a text: documents, or lists of them.
fn parse(text: &str) -> anyhow::Result<Vec<Service>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, yaml_options())?;
    let mut all = Vec::new();
    for document in documents {
        match document["kind"].as_str() {
            Some("Service") => all.push(service(document, "")?),
            Some("List" | "ServiceList") => all.extend(of_list(document)?),
            _ => {}
        }
    }
    Ok(all)
}

/// YAML without limits on the number of objects: the Services of a large cluster are no attack. The length of the
/// text is bounded.
fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_documents: usize::MAX,
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            max_total_comment_bytes: usize::MAX,
        },
    }
}

/// The Services of a list. Items of a ServiceList have no kind.
fn of_list(mut list: Value) -> anyhow::Result<Vec<Service>> {
    let is_of_services = list["kind"] == "ServiceList";
    let items = match list["items"].take() {
        Value::Array(items) => items,
        Value::Null => Vec::new(),
        _ => bail!("items: expected a list"),
    };
    let items = items.into_iter().enumerate();
    let services = items.filter(|(_, item)| is_of_services || item["kind"] == "Service");
    services
        .map(|(index, item)| service(item, &format!("items[{index}]: ")))
        .collect()
}

fn service(value: Value, place: &str) -> anyhow::Result<Service> {
    let name = value["metadata"]["name"].as_str().unwrap_or("?").to_owned();
    serde_json::from_value(value).with_context(|| format!("{place}Service {name}"))
}

#[cfg(test)]
mod tests;
