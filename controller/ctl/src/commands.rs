// SPDX-License-Identifier: Apache-2.0

//! Runs a command against the controllers.

use anyhow::{Context as _, bail};
use portolan_model::NodeTable;
use portolan_select::Explanation;

use crate::answers::Answers;
use crate::args::{Cli, ClusterCommand, Command, DiffArgs};
use crate::client::{Client, Refused, clients, encoded, of_agent};
use crate::reply::{Output, Reply};
use crate::{
    agent, check, clusters, deletions, diff, dns, env, explain, fleet, health, imports, nodes,
    problems, status, table, top, trace, version, wait,
};

/// Runs a command that asks controllers.
pub(crate) async fn run(cli: &Cli) -> anyhow::Result<Reply> {
    if cli.output.is_export() && !matches!(cli.command, Command::Table(_)) {
        bail!("-o iptables, nft and ipvsadm are formats of table alone");
    }
    if matches!(cli.command, Command::Version { client: true }) {
        return Ok(version::of_client());
    }
    if let Command::Check { agent, connect } = &cli.command {
        return check::run(&cli.connect, agent, connect).await;
    }
    if let Command::Env(args) = &cli.command {
        return env::run(&cli.connect, args).await;
    }
    if let Command::Top(args) = &cli.command {
        return Box::pin(top::once(&cli.connect, args)).await;
    }
    if let Command::Trace(args) = &cli.command {
        return Box::pin(trace::run(&cli.connect, args, cli.output)).await;
    }
    if let Command::Agent(args) = &cli.command {
        let client = of_agent(&args.address, cli.connect.timeout)?;
        return agent::run(&client, args.command).await;
    }
    if let Some(reply) = Box::pin(of_fleet(cli)).await {
        return reply;
    }
    let clients = clients(&cli.connect, cli.command.is_action()).await?;
    match &cli.command {
        Command::Status => status::run(&clients).await,
        Command::Nodes { behind } => {
            let answers = Answers::ask(&clients, "/debug/nodes").await?;
            let reply = nodes::show(answers.values(), *behind, cli.output == Output::Wide)?;
            Ok(answers.complete(reply))
        }
        Command::Health(args) => {
            let answers = Answers::ask(&clients, "/debug/health").await?;
            let reply = health::show(answers.values(), args, cli.output == Output::Wide)?;
            Ok(answers.complete(reply))
        }
        Command::Wait {
            target,
            without,
            skip_disconnected,
        } => {
            let target = wait::Target::new(target, without.as_deref())?;
            target.check(clients.len())?;
            wait::run(&clients, &target, *skip_disconnected, cli.connect.timeout).await
        }
        Command::Cluster {
            command: ClusterCommand::Drain { name, to, over },
        } => {
            let over = over.as_secs();
            let path = format!("/debug/drain/{}?to={to}&over={over}s", encoded(name));
            act(
                &clients,
                &path,
                &format!("cluster {name}: drained to {to} % within {over} s\n"),
            )
            .await
        }
        Command::Cluster {
            command: ClusterCommand::Undrain { name },
        } => {
            let path = format!("/debug/undrain/{}", encoded(name));
            act(
                &clients,
                &path,
                &format!("cluster {name}: no longer drained\n"),
            )
            .await
        }
        Command::Confirm { node, deletions: _ } => confirm(&clients, node.as_deref()).await,
        Command::Version { .. } => version::run(&clients).await,
        command => match of_agents(&clients, command).await? {
            Some(reply) => Ok(reply),
            None => of_any(&clients, command, cli.output).await,
        },
    }
}

/// Runs a command about what each controller knows of the agents that are connected to it.
async fn of_agents(clients: &[Client], command: &Command) -> anyhow::Result<Option<Reply>> {
    let (answers, reply) = match command {
        Command::Diff(DiffArgs {
            node: Some(node),
            other: None,
            ..
        }) => {
            let answers = Answers::ask(clients, "/debug/nodes").await?;
            let (holder, is_connected) = answers.holder(node);
            let path = format!("/debug/diff/{}", encoded(node));
            let reply = diff::of_one(node, clients[holder].get(&path).await?)?;
            if is_connected {
                return Ok(Some(answers.annotate(reply)));
            }
            (answers, reply)
        }
        Command::Cluster {
            command: ClusterCommand::List,
        } => {
            let answers = Answers::ask(clients, "/debug/clusters").await?;
            let reply = clusters::show(clusters::merged(answers.values()))?;
            (answers, reply)
        }
        Command::ExplainImport { name } => {
            let path = format!("/debug/federation?import={}", encoded(name));
            let answers = Answers::ask(clients, &path).await?;
            let reply = imports::show(imports::merged(answers.values()))?;
            (answers, reply)
        }
        Command::Deletions => {
            let answers = Answers::ask(clients, "/debug/deletions").await?;
            let value = answers.joined("held", clients);
            let text = deletions::show(&value, "is held back");
            (answers, Reply::new(value, text))
        }
        _ => return Ok(None),
    };
    Ok(Some(answers.complete(reply)))
}

/// Shows a dump of which each controller has the same: that of the first one that answers.
async fn of_any(clients: &[Client], command: &Command, output: Output) -> anyhow::Result<Reply> {
    let mut notes = Vec::new();
    for client in clients {
        match dump(client, command, output).await {
            Err(error) if !error.is::<Refused>() && notes.len() + 1 < clients.len() => {
                notes.push(format!("{error:#}"));
            }
            reply => return Ok(reply?.with_notes(notes)),
        }
    }
    bail!("no controller")
}

/// Runs a command about the objects of a fleet, which asks etcd.
async fn of_fleet(cli: &Cli) -> Option<anyhow::Result<Reply>> {
    let timeout = cli.connect.timeout;
    Some(match &cli.command {
        Command::Apply(args) => fleet::apply(args, timeout).await,
        Command::Get(args) => fleet::get(args, cli.output, timeout).await,
        Command::Delete(args) => fleet::delete(args, timeout).await,
        Command::Diff(args) if !args.file.is_empty() => {
            fleet::diff(&args.file, &args.etcd, timeout).await
        }
        _ => return None,
    })
}

/// Shows a dump of one controller.
async fn dump(client: &Client, command: &Command, output: Output) -> anyhow::Result<Reply> {
    Ok(match command {
        Command::Table(args) => {
            let value = client.get(&table_path(&args.node)).await?;
            let text = table::text(&table::parse(value.clone())?, args, output)?;
            Reply::new(value, text)
        }
        Command::Diff(DiffArgs {
            node: Some(node),
            other: Some(other),
            ..
        }) => {
            let (a, b) = (
                get_table(client, node).await?,
                get_table(client, other).await?,
            );
            diff::of_two(node, &a, other, &b)
        }
        Command::Explain { address, node } => {
            let (address, protocol) = address.rsplit_once('/').unwrap_or((address, "tcp"));
            let path = format!(
                "/debug/explain?address={}&protocol={}&node={}",
                encoded(address),
                encoded(protocol),
                encoded(node)
            );
            let value = client.get(&path).await?;
            let explanation: Explanation =
                serde_json::from_value(value.clone()).context("the controller's answer")?;
            Reply::new(value, explain::show(&explanation))
        }
        Command::Dns { name, r#type } => {
            let (name, kind) = (encoded(name), encoded(r#type));
            let value = client
                .get(&format!("/debug/dns?name={name}&type={kind}"))
                .await?;
            let text = dns::show(&value);
            Reply::new(value, text)
        }
        Command::ExplainExport { name } => {
            let path = format!("/debug/federation?export={}", encoded(name));
            imports::show_export(client.get(&path).await?)?
        }
        Command::PlanPolicy { file } => {
            let text = imports::read_policy(file)?;
            imports::show_plan(client.send("/debug/plan-policy", text).await?)?
        }
        Command::Problems => problems::show(client.get("/debug/problems").await?),
        _ => bail!("not a dump"),
    })
}

/// Asks every controller to do something. One that fails does not keep the others from it.
async fn act(clients: &[Client], path: &str, done: &str) -> anyhow::Result<Reply> {
    let (mut replies, mut errors) = (Vec::new(), Vec::new());
    for client in clients {
        match client.post(path).await {
            Ok(value) => replies.push(value),
            Err(error) => errors.push(format!("{}: {error:#}", client.name())),
        }
    }
    anyhow::ensure!(
        errors.is_empty(),
        "done at {} of {} controllers; {}",
        replies.len(),
        clients.len(),
        errors.join("; ")
    );
    Ok(Reply::new(replies.into(), done.to_owned()))
}

/// Confirms at every controller: an agent is connected to one of them, and each of several holds
/// deletions back on its own.
async fn confirm(clients: &[Client], node: Option<&str>) -> anyhow::Result<Reply> {
    let path = match node {
        Some(node) => format!("/debug/confirm/{}", encoded(node)),
        None => "/debug/confirm-deletions".to_owned(),
    };
    let (mut replies, mut failed) = (Vec::new(), None);
    for client in clients {
        match client.post(&path).await {
            Ok(value) => replies.push(value),
            Err(error) => failed = Some(error),
        }
    }
    let text = replies.iter().map(|value| match node {
        Some(node) => format!("node {node}: revision {} is confirmed\n", value["revision"]),
        None => deletions::show(value, "is confirmed"),
    });
    let text: String = text.collect();
    match (failed, node) {
        // The node's agent is connected to another controller.
        (Some(_), Some(_)) if !replies.is_empty() => {}
        (Some(error), _) => return Err(error),
        (None, _) => {}
    }
    Ok(Reply::new(replies.into(), text))
}

fn table_path(node: &str) -> String {
    format!("/debug/table/{}", encoded(node))
}

async fn get_table(client: &Client, node: &str) -> anyhow::Result<NodeTable> {
    table::parse(client.get(&table_path(node)).await?)
}

#[cfg(test)]
mod tests;
