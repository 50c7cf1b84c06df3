// SPDX-License-Identifier: Apache-2.0

//! Unix sockets: permissions, and the file of the socket before and after.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::net::UnixListener;

/// The system's groups.
const GROUPS: &str = "/etc/group";

/// Permissions of a socket, written in octal. Write permission allows connecting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketMode(u32);

/// A flag of a socket that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SocketFlagError {
    /// Not permissions.
    #[error("expected permissions in octal, such as 0660")]
    Mode,
    /// Not a group.
    #[error("expected the name or the number of a group")]
    Group,
}

impl SocketMode {
    /// Access for the owner only.
    pub const OWNER: Self = Self(0o600);
}

impl Default for SocketMode {
    fn default() -> Self {
        Self::OWNER
    }
}

impl FromStr for SocketMode {
    type Err = SocketFlagError;

    fn from_str(text: &str) -> Result<Self, SocketFlagError> {
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o777 && !text.starts_with('+') => Ok(Self(mode)),
            _ => Err(SocketFlagError::Mode),
        }
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// The group of a socket: a number, or a name of `/etc/group`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketGroup(String);

impl FromStr for SocketGroup {
    type Err = SocketFlagError;

    fn from_str(text: &str) -> Result<Self, SocketFlagError> {
        match text.is_empty() || text.contains(':') {
            true => Err(SocketFlagError::Group),
            false => Ok(Self(text.to_owned())),
        }
    }
}

impl SocketGroup {
    /// The number of the group. Names are looked up in a file in the format of group(5).
    fn number(&self, groups: &Path) -> io::Result<u32> {
        if let Ok(number) = self.0.parse() {
            return Ok(number);
        }
        let text = fs::read_to_string(groups)?;
        let found = text.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (name == self.0).then(|| fields.nth(1)?.parse().ok())?
        });
        let missing = || io::Error::other(format!("no group is named {:?}", self.0));
        found.ok_or_else(missing)
    }
}

/// Permissions and group of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketAccess {
    /// The permissions.
    pub mode: SocketMode,
    /// The group; by default that of the process.
    pub group: Option<SocketGroup>,
}

impl Default for SocketAccess {
    /// Access for the user of the process, and root.
    fn default() -> Self {
        let mode = SocketMode::OWNER;
        Self { mode, group: None }
    }
}

/// The file of a served socket. Deleted on drop, unless another process has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // A file that is left behind is replaced by the next process.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Listens on a Unix socket. A socket that another process left behind is replaced, and a missing
/// directory is created. The socket has its permissions before clients can connect. Must be called within
/// a tokio runtime.
///
/// # Errors
/// If another process serves the socket (`AddrInUse`), if the path is not that of a socket, or if the
/// socket cannot be created. The message names the path.
pub fn listen_unix(path: &Path, access: &SocketAccess) -> io::Result<(UnixListener, SocketFile)> {
    bind(path, access, Path::new(GROUPS))
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn bind(
    path: &Path,
    access: &SocketAccess,
    groups: &Path,
) -> io::Result<(UnixListener, SocketFile)> {
    let group = access.group.as_ref().map(|group| group.number(groups));
    let group = group.transpose()?;
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    if !directory.exists() {
        fs::create_dir(directory)?;
    }
    ensure_free(path)?;
    // Created under a name unique to this process, and renamed once its permissions are set.
    let mut hidden = std::ffi::OsString::from(format!(".{}.", std::process::id()));
    hidden.push(name);
    let hidden = directory.join(hidden);
    remove(&hidden)?;
    let listener = UnixListener::bind(&hidden)?;
    let placed = place(&hidden, path, access.mode, group);
    if placed.is_err() {
        // The first error is reported.
        let _ = remove(&hidden);
    }
    Ok((listener, placed?))
}

fn place(
    hidden: &Path,
    path: &Path,
    mode: SocketMode,
    group: Option<u32>,
) -> io::Result<SocketFile> {
    fs::set_permissions(hidden, fs::Permissions::from_mode(mode.0))?;
    if group.is_some() {
        chown(hidden, None, group)?;
    }
    let identity = identity(hidden)?;
    fs::rename(hidden, path)?;
    let path = path.to_owned();
    Ok(SocketFile { path, identity })
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Checks that a path is free, or that of a socket that no process serves.
fn ensure_free(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            let message = "the file is not a socket";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        Ok(_) => {}
    }
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        // EAGAIN: the backlog is full.
        Ok(()) | Err(Errno::AGAIN) => {
            let message = "another process serves this socket";
            Err(io::Error::new(io::ErrorKind::AddrInUse, message))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener as Other;

    use tempfile::tempdir;
    use tokio::net::UnixStream;

    use super::*;

    fn listen(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
        listen_unix(path, &SocketAccess::default())
    }

    #[tokio::test]
    async fn only_abandoned_sockets_are_replaced() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("run/a.sock");
        let first = listen(&path).unwrap();
        let error = listen(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains("a.sock: another"), "{error}");
        drop(first);
        assert!(!path.exists());

        drop(Other::bind(&path).unwrap());
        assert!(path.exists());
        let (_listener, _file) = listen(&path).unwrap();
        UnixStream::connect(&path).await.unwrap();
        let names = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(names, 1);
    }

    #[tokio::test]
    async fn a_socket_whose_backlog_is_full_is_in_use() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let (_listener, _file) = listen(&path).unwrap();
        let flags = SocketFlags::NONBLOCK;
        let mut waiting = Vec::new();
        loop {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            let full = connect(&socket, &SocketAddrUnix::new(&path).unwrap()).is_err();
            waiting.push(socket);
            if full {
                break;
            }
        }
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn other_files_are_left_untouched() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("a.sock");
        fs::write(&path, "precious").unwrap();
        let error = listen(&path).unwrap_err();
        assert!(error.to_string().contains("not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_replaced_socket_is_not_deleted() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let (_listener, file) = listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = Other::bind(&path).unwrap();
        drop(file);
        assert!(path.exists());
    }

    #[tokio::test]
    async fn mode_and_group_are_applied() {
        let directory = tempdir().unwrap();
        let path = directory.path().join("a.sock");
        let (_listener, file) = listen(&path).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!(found.mode() & 0o7777, 0o600);
        let (own, groups) = (found.gid(), directory.path().join("group"));
        drop(file);

        fs::write(&groups, format!("root:x:0:\nours:x:{own}:a,b\n")).unwrap();
        let access = |group: &str| SocketAccess {
            mode: "0660".parse().unwrap(),
            group: Some(group.parse().unwrap()),
        };
        let (_listener, file) = bind(&path, &access("ours"), &groups).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.mode() & 0o7777, found.gid()), (0o660, own));
        drop(file);
        let error = bind(&path, &access("theirs"), &groups).unwrap_err();
        assert!(error.to_string().contains("\"theirs\""), "{error}");
        assert!(bind(&path, &access(&own.to_string()), &groups).is_ok());
    }

    #[test]
    fn permissions_are_octal() {
        assert_eq!("600".parse(), Ok(SocketMode::OWNER));
        assert_eq!("0660".parse::<SocketMode>().unwrap().to_string(), "0660");
        for text in ["", "rw", "0888", "1777", "+600"] {
            assert!(text.parse::<SocketMode>().is_err(), "{text}");
        }
    }
}
