// SPDX-License-Identifier: Apache-2.0

//! Flags of `config`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Commands about files of load balancers. None of them needs a kernel or an agent.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check files with load balancers, and print all errors with file, line, column and field. The exit code
    /// is 1 after an error.
    Check(FilesArgs),

    /// Print the JSON schema of `LoadBalancer` and `Director`, for editors.
    Schema,

    /// Print the file of another program as load balancers, and on standard error what became of each
    /// setting. The exit code is 0 if all of it has the same meaning, 2 with warnings, and 1 after an error,
    /// and then nothing is printed.
    Import(ImportArgs),

    /// Print the commands that real servers need for the forwarding methods of the files.
    Explain(ExplainArgs),
}

/// Files to read.
#[derive(Debug, Args)]
pub struct FilesArgs {
    /// Files, or directories of which all *.yaml, *.yml and *.json are read.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

/// Flags of `config import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The program whose file it is.
    pub program: ImportProgram,

    /// The file; `-` for standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Name of the `Director` object, if the file has settings for one: the name of the node.
    #[arg(long, value_name = "NAME", default_value = "director")]
    pub director: String,

    /// keepalived: its --config-id, which selects lines that begin with @id.
    #[arg(long, value_name = "ID")]
    pub config_id: Option<String>,

    /// ipvsadm: join services that differ in nothing but their addresses and ports.
    #[arg(long)]
    pub merge: bool,

    /// ldirectord: import a check of an unknown service as one that always fails, with a warning.
    #[arg(long)]
    pub allow_partial: bool,
}

/// Programs whose files can be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportProgram {
    /// A keepalived.conf.
    Keepalived,
    /// A ldirectord.cf.
    Ldirectord,
    /// The output of `ipvsadm -Sn`.
    Ipvsadm,
}

/// Flags of `config explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Files, or directories of which all *.yaml, *.yml and *.json are read.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,

    /// The load balancer; all without it.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub name: Option<String>,
}
