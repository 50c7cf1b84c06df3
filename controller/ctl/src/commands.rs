// SPDX-License-Identifier: Apache-2.0

//! Runs a command against the controllers.

use anyhow::{Context as _, bail, ensure};
use portolan_model::NodeTable;
use portolan_select::Explanation;

use crate::agent::AgentArgs;
use crate::answers::{Answers, UNANSWERED, first};
use crate::args::{Cli, ClusterCommand, Command, ConnectArgs, DiffArgs};
use crate::client::{self, Client, Follower, clients, encoded, of_agent};
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
        return ask_agent(cli, args).await;
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
            let reply = health::show(answers.values(), args, cli.output == Output::Wide)
                .map_err(|error| answers.explained(error))?;
            Ok(answers.complete(reply))
        }
        Command::Wait {
            target,
            without,
            skip_disconnected,
        } => {
            let target = wait::Target::new(target, without.as_deref())?;
            wait(&cli.connect, clients, &target, *skip_disconnected).await
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
        Command::Confirm { node, .. } => confirm(&cli.connect, &clients, node.as_deref()).await,
        Command::Version { .. } => version::run(&clients).await,
        command => match of_agents(&clients, command).await? {
            Some(reply) => Ok(reply),
            None => of_any(&clients, command, cli.output).await,
        },
    }
}

/// Asks the agent of this node. Dumps need no token.
async fn ask_agent(cli: &Cli, args: &AgentArgs) -> anyhow::Result<Reply> {
    let client = of_agent(&args.address, cli.connect.timeout)?;
    let token_file = cli.connect.token_file.clone();
    let client = client.with_token(token_file.filter(|_| cli.command.is_action()));
    agent::run(&client, args.command).await
}

/// Waits for a target. Pods are listed again when one does not answer.
async fn wait(
    connect: &ConnectArgs,
    clients: Vec<Client>,
    target: &wait::Target,
    skip_disconnected: bool,
) -> anyhow::Result<Reply> {
    let again = async || client::clients(connect, false).await;
    wait::run(clients, again, target, skip_disconnected, connect.timeout).await
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
    let (reply, notes) = first(clients, |client| dump(client, command, output)).await?;
    Ok(reply.with_notes(notes))
}

/// Runs a command about the objects of a fleet, which asks etcd.
async fn of_fleet(cli: &Cli) -> Option<anyhow::Result<Reply>> {
    let timeout = cli.connect.timeout;
    let is_of_fleet = match &cli.command {
        Command::Apply(_) | Command::Get(_) | Command::Delete(_) => true,
        Command::Diff(args) => !args.file.is_empty(),
        _ => false,
    };
    if is_of_fleet && cli.connect.namespace.is_some() {
        return Some(Err(anyhow::anyhow!(
            "--namespace: that of the controllers' pods; name a load balancer as NAMESPACE/NAME"
        )));
    }
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

/// Asks every controller to do something. One that fails does not keep the others from it. One that follows another
/// one does nothing, and that is no failure once another has done it.
async fn act(clients: &[Client], path: &str, done: &str) -> anyhow::Result<Reply> {
    let (mut replies, mut errors, mut followers) = (Vec::new(), Vec::new(), Vec::new());
    for client in clients {
        match client.post(path).await {
            Ok(value) => replies.push(value),
            Err(error) if error.is::<Follower>() => followers.push(client.named(&error)),
            Err(error) => errors.push(client.named(&error)),
        }
    }
    if replies.is_empty() {
        errors.append(&mut followers);
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
/// deletions back on its own. One that fails does not keep the others from it.
async fn confirm(
    connect: &ConnectArgs,
    clients: &[Client],
    node: Option<&str>,
) -> anyhow::Result<Reply> {
    let cluster = connect.cluster().unwrap_or_default();
    ensure!(
        node.is_some() || cluster.is_empty(),
        "confirm --deletions: the deletions of all clusters are confirmed: leave out \
         --cluster {cluster}, and PORTOLANCTL_CLUSTER"
    );
    let path = match node {
        Some(node) => format!("/debug/confirm/{}", encoded(node)),
        None => "/debug/confirm-deletions".to_owned(),
    };
    let is_one = clients.len() == 1;
    let (mut replies, mut text, mut errors) = (Vec::new(), String::new(), Vec::new());
    for client in clients {
        let value = match client.post(&path).await {
            Ok(value) => value,
            Err(error) if is_one => return Err(error),
            Err(error) => {
                errors.push(client.named(&error));
                continue;
            }
        };
        match node {
            Some(node) => {
                let revision = &value["revision"];
                text.push_str(&format!("node {node}: revision {revision} is confirmed\n"));
            }
            None if is_one => text.push_str(&deletions::show(&value, "is confirmed")),
            None => {
                let shown = deletions::show(&value, "is confirmed");
                let lines = shown.lines();
                text.extend(lines.map(|line| format!("{}: {line}\n", client.name())));
            }
        }
        replies.push(value);
    }
    ensure!(!replies.is_empty(), "{}", errors.join("; "));
    let reply = Reply::new(replies.into(), text);
    match node {
        // The node's agent is connected to one controller, and the others refuse.
        Some(_) => Ok(reply),
        None if errors.is_empty() => Ok(reply),
        None => Ok(reply.with_notes(errors).with_code(UNANSWERED)),
    }
}

fn table_path(node: &str) -> String {
    format!("/debug/table/{}", encoded(node))
}

async fn get_table(client: &Client, node: &str) -> anyhow::Result<NodeTable> {
    table::parse(client.get(&table_path(node)).await?)
}

#[cfg(test)]
mod tests;
