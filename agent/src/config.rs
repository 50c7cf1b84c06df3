// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent config`: checks, imports and explains files of load balancers.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use portolan_director::import::{Import, ipvsadm, keepalived, ldirectord};
use portolan_director::{Already, Answer, File};

use crate::args::{ConfigCommand, ImportArgs, ImportProgram};

/// Runs a command; prints its answer.
///
/// # Errors
/// If a file cannot be read, or the answer not be written.
pub fn run(command: &ConfigCommand) -> anyhow::Result<ExitCode> {
    let answer = match command {
        ConfigCommand::Schema => Answer {
            text: portolan_director::schema_text(),
            code: 0,
        },
        ConfigCommand::Check(args) => with_files(&args.paths, |files| {
            portolan_director::check_files(files, &Already::default(), None)
        })?,
        ConfigCommand::Explain(args) => with_files(&args.paths, |files| {
            portolan_director::explain_files(files, args.name.as_deref())
        })?,
        ConfigCommand::Import(args) => {
            let import = import(args)?;
            std::io::stderr().write_all(import.report().as_bytes())?;
            Answer {
                text: import.to_yaml(),
                code: import.exit_code(),
            }
        }
    };
    std::io::stdout().write_all(answer.text.as_bytes())?;
    Ok(ExitCode::from(answer.code))
}

fn with_files(
    paths: &[PathBuf],
    ask: impl FnOnce(&[File<'_>]) -> Answer,
) -> anyhow::Result<Answer> {
    let mut texts = Vec::new();
    for path in paths {
        for file in portolan_source::file::list(path).with_context(|| path.display().to_string())? {
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            texts.push((file.display().to_string(), text));
        }
    }
    let files: Vec<_> = texts
        .iter()
        .map(|(name, text)| File { name, text })
        .collect();
    Ok(ask(&files))
}

fn import(args: &ImportArgs) -> anyhow::Result<Import> {
    let name = args.file.display().to_string();
    let text = read(&args.file).with_context(|| name.clone())?;
    let file = File {
        name: &name,
        text: &text,
    };
    Ok(match args.program {
        ImportProgram::Ipvsadm => ipvsadm::import(file, args.merge),
        ImportProgram::Ldirectord => {
            let options = ldirectord::Options {
                allow_partial: args.allow_partial,
                director: &args.director,
            };
            ldirectord::import(file, options)
        }
        ImportProgram::Keepalived => {
            let options = keepalived::Options {
                include: &included,
                config_id: args.config_id.as_deref(),
                director: &args.director,
            };
            keepalived::import(file, &options)
        }
    })
}

fn read(path: &Path) -> std::io::Result<String> {
    if path.as_os_str() != "-" {
        return fs::read_to_string(path);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// The files that match the pattern of an `include`, which is relative to the directory of the including file.
fn included(file: &str, pattern: &str) -> Vec<(String, std::io::Result<String>)> {
    let directory = Path::new(file).parent().unwrap_or(Path::new(""));
    let pattern = directory.join(pattern);
    let found = glob::glob(&pattern.to_string_lossy());
    let files = found.into_iter().flatten().map(|path| match path {
        Ok(path) => {
            let text = fs::read_to_string(&path);
            (path.display().to_string(), text)
        }
        Err(error) => {
            let path = error.path().display().to_string();
            (path, Err(error.into()))
        }
    });
    // keepalived passes over directories.
    files
        .filter(|(name, _)| !Path::new(name).is_dir())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_include_is_relative_to_its_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("conf.d")).unwrap();
        fs::write(dir.path().join("conf.d/web.conf"), "virtual_server 192.0.2.10 80 {\n  protocol TCP\n  real_server 10.0.0.11 8080 {\n    weight 3\n  }\n}\n").unwrap();
        let main = dir.path().join("keepalived.conf");
        fs::write(&main, "include conf.d/*.conf\n").unwrap();
        let import = keepalived(main);
        assert_ne!(import.exit_code(), 1, "{}", import.report());
        let balancers = import.generation.load_balancers;
        assert_eq!(balancers[0].backends[0].weight, 3);
        // What is printed can be read again.
        let answer = with_files(&[], |_| Answer {
            text: String::new(),
            code: 0,
        });
        assert_eq!(answer.unwrap().code, 0);
    }

    fn keepalived(file: PathBuf) -> Import {
        let args = ImportArgs {
            program: ImportProgram::Keepalived,
            file,
            director: "lb1".to_owned(),
            config_id: None,
            merge: false,
            allow_partial: false,
        };
        import(&args).unwrap()
    }

    #[test]
    fn an_include_of_an_included_file_is_relative_to_that_one() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("sites/vs")).unwrap();
        let server = "virtual_server 192.0.2.10 80 {\n  protocol TCP\n  real_server 10.0.0.11 8080 {\n  }\n}\n";
        fs::write(dir.path().join("sites/vs/web.conf"), server).unwrap();
        fs::write(dir.path().join("sites/all.conf"), "include vs/*.conf\n").unwrap();
        let main = dir.path().join("keepalived.conf");
        fs::write(&main, "include sites/all.conf\n").unwrap();
        assert_eq!(keepalived(main).generation.load_balancers.len(), 1);
    }

    #[test]
    fn an_included_file_that_cannot_be_read_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.conf"), "global_defs { router_id x }\n").unwrap();
        fs::write(dir.path().join("b.conf"), b"! f\xfcr\n").unwrap();
        fs::create_dir(dir.path().join("c.conf")).unwrap();
        let main = dir.path().join("keepalived");
        fs::write(&main, "include *.conf\n").unwrap();
        let import = keepalived(main);
        assert_eq!(import.exit_code(), 1);
        let report = import.report();
        assert!(
            report.contains("error: include") && report.contains("b.conf: "),
            "{report}"
        );
        assert!(!report.contains("c.conf"), "{report}");
    }
}
