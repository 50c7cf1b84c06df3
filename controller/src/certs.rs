// SPDX-License-Identifier: Apache-2.0

//! `portolan-controller certs`: a certificate authority and certificates for trials.
//!
//! Each certificate has its own directory, in the layout of cert-manager and of Secrets of type
//! kubernetes.io/tls. A second run renews the certificates and keeps the authority.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use portolan_runtime::AtomicFile;
use portolan_tls::issue::{Authority, Issued};
use portolan_tls::{EdgeName, NodeName, RelayName};

const DAY: Duration = Duration::from_secs(86_400);

/// Validity of the authority.
const AUTHORITY_DAYS: u32 = 3_650;

/// Certificates are backdated, since clocks differ.
const BACKDATED: Duration = Duration::from_secs(300);

/// Flags of `certs`.
#[derive(Debug, clap::Args)]
pub(crate) struct CertsArgs {
    /// Directory of the output: ca/, controller/, nodes/NODE/, relays/NAME/ and edges/NAME/, each with tls.crt,
    /// tls.key and ca.crt.
    #[arg(long)]
    dir: PathBuf,

    /// Name of a node; may be repeated.
    #[arg(long, value_delimiter = ',')]
    node: Vec<String>,

    /// Name of a relay, by which agents reach it; may be repeated. Its certificate is valid for a
    /// client and for a server.
    #[arg(long, value_delimiter = ',')]
    relay: Vec<String>,

    /// Name of an edge controller of the cluster; may be repeated.
    #[arg(long, value_delimiter = ',')]
    edge: Vec<String>,

    /// Host name or address by which agents reach the controller; may be repeated.
    #[arg(long, value_delimiter = ',', default_value = "localhost")]
    server_name: Vec<String>,

    /// Name of the cluster; empty for a single cluster.
    #[arg(long, default_value = "")]
    cluster: String,

    /// Validity of the certificates, in days.
    #[arg(long, default_value = "365", value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
}

/// Creates the authority, if it does not exist, and the certificates.
pub(crate) fn run(args: &CertsArgs) -> anyhow::Result<()> {
    let authority = authority(&args.dir.join("ca"))?;
    let names: Vec<_> = args.server_name.iter().map(String::as_str).collect();
    let issued = authority
        .server(&names, valid(args.days))
        .context("--server-name")?;
    write(&args.dir.join("controller"), &authority, &issued)?;
    for node in &args.node {
        let dir = directory(&args.dir.join("nodes"), node).context("--node")?;
        let name = NodeName::new(&args.cluster, node).context("--node")?;
        let issued = authority.node(&name, valid(args.days))?;
        write(&dir, &authority, &issued)?;
        tracing::info!("created a certificate for {name}");
    }
    for relay in &args.relay {
        let dir = directory(&args.dir.join("relays"), relay).context("--relay")?;
        let name = RelayName::new(&args.cluster, relay).context("--relay")?;
        let issued = authority.relay(&name, valid(args.days))?;
        write(&dir, &authority, &issued)?;
        tracing::info!("created a certificate for {name}");
    }
    for edge in &args.edge {
        let dir = directory(&args.dir.join("edges"), edge).context("--edge")?;
        let name = EdgeName::new(&args.cluster, edge).context("--edge")?;
        let issued = authority.edge(&name, valid(args.days))?;
        write(&dir, &authority, &issued)?;
        tracing::info!("created a certificate for {name}");
    }
    tracing::info!("created certificates in {}", args.dir.display());
    Ok(())
}

/// The directory of a name, which must not be a path.
fn directory(parent: &Path, name: &str) -> anyhow::Result<PathBuf> {
    if name.starts_with('.') {
        bail!("{name:?}: begins with a dot");
    }
    Ok(parent.join(name))
}

/// Loads the authority, or creates one. An unreadable one is never replaced: nodes may trust it.
fn authority(dir: &Path) -> anyhow::Result<Authority> {
    let read = |file: &str| {
        let path = dir.join(file);
        let text = fs::read_to_string(&path);
        text.with_context(|| path.display().to_string())
    };
    // A run that was interrupted before it wrote either of them has signed nothing.
    if ["tls.crt", "tls.key"]
        .iter()
        .any(|file| dir.join(file).exists())
    {
        let loaded = Authority::load(&read("tls.crt")?, &read("tls.key")?);
        return loaded.with_context(|| format!("the authority in {}", dir.display()));
    }
    let (authority, issued) = Authority::create("portolan", valid(AUTHORITY_DAYS))?;
    write(dir, &authority, &issued)?;
    Ok(authority)
}

fn valid(days: u32) -> Range<SystemTime> {
    let now = SystemTime::now();
    now - BACKDATED..now + DAY * days
}

fn write(dir: &Path, authority: &Authority, issued: &Issued) -> anyhow::Result<()> {
    let named = |path: &Path| path.display().to_string();
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(dir);
    made.with_context(|| named(dir))?;
    for (file, content) in [
        ("ca.crt", authority.cert()),
        ("tls.crt", &issued.cert),
        ("tls.key", &issued.key),
    ] {
        let path = dir.join(file);
        let file = AtomicFile::new(&path).private();
        file.write(content.as_bytes())
            .with_context(|| named(&path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use portolan_tls::{ClientFiles, ServerFiles};

    use super::*;

    fn args(dir: &Path, nodes: &[&str]) -> CertsArgs {
        CertsArgs {
            dir: dir.to_owned(),
            node: nodes.iter().map(|node| (*node).to_owned()).collect(),
            relay: Vec::new(),
            edge: Vec::new(),
            server_name: vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
            cluster: String::new(),
            days: 1,
        }
    }

    #[test]
    fn certificates_can_be_used_and_are_private() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path();
        run(&args(dir, &["a"])).unwrap();
        let server = ServerFiles {
            cert: dir.join("controller/tls.crt"),
            key: dir.join("controller/tls.key"),
            client_ca: Some(dir.join("controller/ca.crt")),
            anonymous: false,
        };
        server.open("tls").unwrap();
        let client = ClientFiles {
            ca: dir.join("nodes/a/ca.crt"),
            identity: Some((dir.join("nodes/a/tls.crt"), dir.join("nodes/a/tls.key"))),
        };
        client.open("tls").unwrap();
        for file in [
            "ca/tls.key",
            "controller/tls.key",
            "nodes/a/tls.key",
            "nodes/a/tls.crt",
        ] {
            let mode = fs::metadata(dir.join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
    }

    #[test]
    fn a_second_run_keeps_the_authority_and_renews_certificates() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path();
        let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap();
        run(&args(dir, &["a"])).unwrap();
        let before = (
            read("ca/tls.crt"),
            read("ca/tls.key"),
            read("nodes/a/tls.crt"),
        );
        run(&args(dir, &["a", "b"])).unwrap();
        assert_eq!(
            (read("ca/tls.crt"), read("ca/tls.key")),
            (before.0.clone(), before.1)
        );
        assert_ne!(read("nodes/a/tls.crt"), before.2);
        assert_eq!(read("nodes/b/ca.crt"), before.0);
        fs::write(dir.join("ca/tls.key"), "broken").unwrap();
        assert!(run(&args(dir, &["a"])).is_err());
        assert_eq!(read("ca/tls.crt"), before.0);
    }

    #[test]
    fn a_relay_certificate_is_valid_for_client_and_server() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path();
        let relay = vec!["relay-1".to_owned(), "10.0.0.1".to_owned()];
        run(&CertsArgs {
            relay,
            ..args(dir, &[])
        })
        .unwrap();
        for name in ["relay-1", "10.0.0.1"] {
            let at = |file: &str| dir.join("relays").join(name).join(file);
            let server = ServerFiles {
                cert: at("tls.crt"),
                key: at("tls.key"),
                client_ca: Some(at("ca.crt")),
                anonymous: false,
            };
            server.open("tls").unwrap();
            let client = ClientFiles {
                ca: at("ca.crt"),
                identity: Some((at("tls.crt"), at("tls.key"))),
            };
            client.open("tls").unwrap();
        }
        for bad in ["..", "a/b", ""] {
            let relay = vec![bad.to_owned()];
            let args = CertsArgs {
                relay,
                ..args(dir, &[])
            };
            assert!(run(&args).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn paths_are_refused_as_names() {
        let temporary = tempfile::tempdir().unwrap();
        for bad in ["..", "a/b", "", ".x"] {
            assert!(run(&args(temporary.path(), &[bad])).is_err(), "{bad:?}");
        }
    }
}
