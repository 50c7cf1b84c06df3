// SPDX-License-Identifier: Apache-2.0

//! The part of `protoc` that `prost-build` runs, so that no `protoc` need be installed.
//!
//! `etcd-client` runs `protoc` when it is built. `.cargo/config.toml` points its `PROTOC` to
//! `.cargo/protoc`, which builds and runs this program.

use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use protox::Compiler;

/// The arguments that `prost-build` gives.
#[derive(Debug, Default, PartialEq, Eq)]
struct Args {
    includes: Vec<PathBuf>,
    output: PathBuf,
    has_imports: bool,
    has_source_info: bool,
    files: Vec<PathBuf>,
}

impl Args {
    fn parse(args: impl IntoIterator<Item = OsString>) -> io::Result<Self> {
        let mut parsed = Self::default();
        let mut args = args.into_iter();
        let refuse = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        while let Some(arg) = args.next() {
            let mut value = || {
                let flag = arg.display();
                args.next()
                    .ok_or_else(|| refuse(format!("{flag}: value missing")))
            };
            match arg.to_str() {
                Some("-I") => parsed.includes.push(value()?.into()),
                Some("-o") => parsed.output = value()?.into(),
                Some("--include_imports") => parsed.has_imports = true,
                Some("--include_source_info") => parsed.has_source_info = true,
                Some(flag) if flag.starts_with('-') => {
                    return Err(refuse(format!(
                        "{flag}: unknown flag; set PROTOC to a protoc"
                    )));
                }
                _ => parsed.files.push(arg.into()),
            }
        }
        if parsed.output.as_os_str().is_empty() {
            return Err(refuse("-o: missing".to_owned()));
        }
        Ok(parsed)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse(std::env::args_os().skip(1))?;
    let mut compiler = Compiler::new(&args.includes)?;
    compiler
        .include_imports(args.has_imports)
        .include_source_info(args.has_source_info)
        .open_files(&args.files)?;
    std::fs::write(&args.output, compiler.encode_file_descriptor_set())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> io::Result<Args> {
        Args::parse(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn arguments_of_prost_build_are_understood() {
        let args = parse("--include_imports --include_source_info -o out -I a -I b x.proto");
        let expected = Args {
            includes: vec!["a".into(), "b".into()],
            output: "out".into(),
            has_imports: true,
            has_source_info: true,
            files: vec!["x.proto".into()],
        };
        assert_eq!(args.unwrap(), expected);
    }

    #[test]
    fn other_arguments_are_refused_by_name() {
        for (args, named) in [
            ("--go_out=x -o y", "--go_out"),
            ("x.proto", "-o"),
            ("-o", "-o"),
        ] {
            let error = parse(args).unwrap_err().to_string();
            assert!(error.starts_with(named), "{args}: {error}");
        }
    }
}
