// SPDX-License-Identifier: Apache-2.0

//! Start of programs: of `exec` checks and of hooks.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, PoisonError, RwLock};

use nix::unistd::User;
use tokio::process::Command;

use crate::blocking::Blocking;
use crate::fault::{Checked, Stop};

/// The search path of programs that start others. Nothing else of the agent's environment is passed
/// on, as there may be credentials in it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The user that runs programs, and the directories that they must be in: `spec.scripts` of a `Director`. Clones are the
/// same.
#[derive(Debug, Clone)]
pub struct Programs(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    rules: RwLock<Option<Rules>>,
    /// Searches for a program by rules.
    searches: Blocking<(Rules, PathBuf), Checked<Option<User>>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Rules {
    /// `None` for the agent's own.
    user: Option<String>,
    /// Any directory if empty.
    directories: Vec<PathBuf>,
}

/// The agent's own user, and any directory.
impl Default for Programs {
    fn default() -> Self {
        let programs = Self::waiting();
        programs.set(None, Vec::new());
        programs
    }
}

impl Programs {
    /// Starts no program until the rules are set, so that none runs as a user that it was not to have.
    #[must_use]
    pub fn waiting() -> Self {
        Self(Arc::default())
    }

    /// Sets the user, `None` for the agent's own, and the absolute paths of the directories, none for any. It holds
    /// for programs that are started afterwards.
    pub fn set(&self, user: Option<String>, directories: Vec<PathBuf>) {
        let mut rules = self.0.rules.write().unwrap_or_else(PoisonError::into_inner);
        *rules = Some(Rules { user, directories });
    }

    fn rules(&self) -> Checked<Rules> {
        let rules = self.0.rules.read().unwrap_or_else(PoisonError::into_inner);
        let waiting = || Stop::ours("no program is started before the files are read");
        rules.clone().ok_or_else(waiting)
    }

    /// A program with its arguments, in a process group and with an environment of its own.
    pub(crate) async fn command(&self, command: &[String], output: Stdio) -> Checked<Command> {
        let (program, arguments) = command.split_first().ok_or(Stop::ours("no program"))?;
        let key = (self.rules()?, PathBuf::from(program));
        // Files and users are looked up anew, since both may change while the agent runs.
        let look_up = |(rules, file): &(Rules, PathBuf)| rules.look_up(file);
        let user = self.0.searches.run(&key, look_up).await??;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(Stdio::null());
        command.process_group(0).env_clear().env("PATH", PATH);
        if let Some(user) = user {
            // Supplementary groups are dropped by the standard library.
            command.gid(user.gid.as_raw()).uid(user.uid.as_raw());
        }
        Ok(command)
    }
}

impl Rules {
    /// The user that runs a program, `None` for the agent's own. An error says why it may not run.
    fn look_up(&self, program: &Path) -> Checked<Option<User>> {
        let name = program.display();
        let broken = |error| Stop::local(&name.to_string(), &error);
        let file = std::fs::canonicalize(program).map_err(broken)?;
        let mode = std::fs::metadata(&file).map_err(broken)?.permissions();
        if mode.mode() & 0o002 != 0 {
            return Err(Stop::ours(format_args!("{name}: everybody may write it")));
        }
        if !self.directories.is_empty() && !self.directories.iter().any(|each| has(each, &file)) {
            return Err(Stop::ours(format_args!(
                "{name}: in no directory of spec.scripts.directories"
            )));
        }
        let Some(user) = &self.user else {
            return Ok(None);
        };
        match User::from_name(user) {
            Ok(Some(user)) => Ok(Some(user)),
            Ok(None) => Err(Stop::ours(format_args!(
                "spec.scripts.user: {user}: no such user on this host"
            ))),
            Err(error) => Err(Stop::ours(format_args!(
                "spec.scripts.user: {user}: {error}"
            ))),
        }
    }
}

/// Returns `true` if a file is in a directory or below it. Symbolic links lead out of a directory.
fn has(directory: &Path, file: &Path) -> bool {
    std::fs::canonicalize(directory).is_ok_and(|directory| file.starts_with(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(user: Option<&str>, directories: &[&Path]) -> Rules {
        Rules {
            user: user.map(str::to_owned),
            directories: directories.iter().map(|each| each.to_path_buf()).collect(),
        }
    }

    fn refusal(rules: &Rules, program: &Path) -> String {
        match rules.look_up(program) {
            Err(Stop::Ours(reason)) => reason.to_string(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn links_lead_out_of_directories() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = outside.path().join("check");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        let link = inside.path().join("check");
        std::os::unix::fs::symlink(&file, &link).unwrap();

        let any = rules(None, &[]);
        assert!(any.look_up(&link).unwrap().is_none());
        let both = rules(None, &[inside.path(), outside.path()]);
        assert!(both.look_up(&link).unwrap().is_none());
        for (directories, program) in [
            (rules(None, &[inside.path()]), &link),
            (rules(None, &[Path::new("/nosuch")]), &file),
            (rules(None, &[&inside.path().join("../x")]), &file),
        ] {
            let said = refusal(&directories, program);
            assert!(
                said.ends_with("in no directory of spec.scripts.directories"),
                "{said}"
            );
        }
        let gone = refusal(&any, &inside.path().join("gone"));
        assert!(gone.contains("gone: No such file"), "{gone}");
    }

    #[test]
    fn files_that_everybody_may_write_are_not_run() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("check");
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o777)).unwrap();
        let said = refusal(&rules(None, &[]), &file);
        assert!(said.ends_with("everybody may write it"), "{said}");
    }

    #[tokio::test]
    async fn rules_are_waited_for() {
        let programs = Programs::waiting();
        let command = ["/bin/true".to_owned()];
        let start = || programs.command(&command, Stdio::null());
        assert!(matches!(start().await, Err(Stop::Ours(_))));
        programs.set(None, Vec::new());
        assert!(start().await.is_ok());
        programs.set(None, vec!["/nosuch".into()]);
        assert!(matches!(start().await, Err(Stop::Ours(_))));
    }

    #[test]
    fn users_are_looked_up_by_name() {
        let program = Path::new("/bin/sh");
        let root = rules(Some("root"), &[]).look_up(program).unwrap();
        assert_eq!(root.map(|user| user.uid.as_raw()), Some(0));
        let said = refusal(&rules(Some("nosuch-user"), &[]), program);
        assert_eq!(
            said,
            "spec.scripts.user: nosuch-user: no such user on this host"
        );
    }
}
