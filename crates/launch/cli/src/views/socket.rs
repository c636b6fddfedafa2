//! The Unix sockets of this user's agents on this machine.
//!
//! The directory is below `$XDG_RUNTIME_DIR`, `/run/user/UID` or the folder for temporary files.
//! Only the user can open it, and each side of a connection checks the other's user. An agent also
//! accepts root.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rdzv_core::env::XDG_RUNTIME_DIR;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use tokio::net;
use tracing::debug;

/// Maximum length of the path of a socket.
const LONGEST: usize = 107;

/// Extension of a socket that does not listen yet.
const UNFINISHED: &str = "new";

/// Path of this agent's listening socket; dropping it removes the file.
#[derive(Debug)]
pub(crate) struct AgentSocket {
    path: PathBuf,
}

/// Binds the socket of this agent.
///
/// Without a socket, this user's views do not find the agent.
pub(crate) fn bind() -> Option<(AgentSocket, UnixListener)> {
    // An agent that ends may have removed the directory just now.
    let mut bound = try_bind();
    for _ in 0..3 {
        match &bound {
            Err(error) if error.kind() == io::ErrorKind::NotFound => bound = try_bind(),
            _ => break,
        }
    }
    let bound = bound.inspect_err(|error| debug!("no socket for views: {error}"));
    bound.ok()
}

fn try_bind() -> io::Result<(AgentSocket, UnixListener)> {
    let directory = directories().next();
    let too_long = || io::Error::other("the path of the socket would be too long");
    let directory = directory.ok_or_else(too_long)?;
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => is_private(&directory)?,
    }
    let path = directory.join(std::process::id().to_string());
    // A socket refuses connections before it listens, and `connect` removes a socket that refuses.
    let hidden = path.with_extension(UNFINISHED);
    // An earlier process with this id may have left its socket.
    let _ = fs::remove_file(&hidden);
    let listener = UnixListener::bind(&hidden)?;
    listener.set_nonblocking(true)?;
    fs::rename(&hidden, &path)?;
    Ok((AgentSocket { path }, listener))
}

/// Returns the sockets of this user's agents.
pub(crate) fn all() -> BTreeSet<PathBuf> {
    let private = directories().filter(|directory| is_private(directory).is_ok());
    let entries = private.flat_map(|directory| fs::read_dir(directory).into_iter().flatten());
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter(|path| path.extension().is_none()).collect()
}

/// Connects to an agent of this user.
///
/// Removes the socket of an agent that has exited.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path).inspect_err(|error| {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            let _ = fs::remove_file(path);
        }
    })?;
    if socket_peercred(&stream)?.uid == geteuid() {
        Ok(stream)
    } else {
        let error = format!("{} belongs to another user", path.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, error))
    }
}

/// `true` if the process at the other end belongs to this user, or is root.
pub(crate) fn is_own(stream: &net::UnixStream) -> bool {
    let peer = stream.peer_cred().map(|peer| peer.uid());
    peer.is_ok_and(|uid| uid == geteuid().as_raw() || uid == 0)
}

/// Returns the directories of this user's sockets, which may not exist.
///
/// An agent uses the first one. Its variables may differ from those of the viewer.
fn directories() -> impl Iterator<Item = PathBuf> {
    let longest = "/4294967295.new".len();
    let user = geteuid().as_raw();
    let name = format!("rdzv-{user}");
    let runtime = std::env::var_os(XDG_RUNTIME_DIR).map(PathBuf::from);
    let system = PathBuf::from(format!("/run/user/{user}"));
    let runtime = [runtime, Some(system)].into_iter().flatten();
    let runtime = runtime.filter(|parent| parent.is_absolute() && parent.is_dir());
    let temporary = [std::env::temp_dir(), PathBuf::from("/tmp")];
    let temporary = temporary.map(|parent| parent.join(&name)).into_iter();
    let all = runtime.map(|parent| parent.join("rdzv")).chain(temporary);
    all.filter(move |path| path.as_os_str().len() + longest <= LONGEST)
}

/// Checks that only this user can open a directory.
fn is_private(directory: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(directory)?;
    let is_ours = found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0;
    if found.is_dir() && is_ours {
        Ok(())
    } else {
        let text = format!(
            "{} is not a private directory of this user",
            directory.display()
        );
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }
}

impl Drop for AgentSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // Fails while other agents have sockets.
        let _ = self.path.parent().map(fs::remove_dir);
    }
}
