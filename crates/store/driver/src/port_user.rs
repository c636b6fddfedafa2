//! The process that uses a TCP port of this host.

use std::fs;
use std::io;
use std::net::SocketAddr;

/// State of a listening socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Limits of the ports that the system assigns to outgoing connections.
const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Describes what uses a local TCP port; `None` if no socket uses it.
///
/// The text names the process if this process may inspect it. For port 0, the text states that all
/// ports that the system assigns are in use.
pub fn port_user(port: u16) -> Option<String> {
    let range = fs::read_to_string(RANGE).unwrap_or_default();
    let range: Vec<&str> = range.split_whitespace().collect();
    let range = range.join("-");
    if port == 0 {
        return Some(format!(
            "every port of net.ipv4.ip_local_port_range ({range}) is in use; widen that range with \
             sysctl, or end processes with many connections"
        ));
    }
    let sockets = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let sockets = sockets.iter().flatten().flat_map(|table| table.lines());
    let mut sockets: Vec<Socket<'_>> = sockets.filter_map(|line| Socket::at(port, line)).collect();
    // A closed connection in the state TIME-WAIT has inode 0 and no owner.
    sockets.sort_by_key(|socket| (!socket.listens, socket.inode == "0"));
    let socket = sockets.first()?;
    let user = match owner(socket.inode) {
        Some((pid, name)) => format!("process {pid} ({name})"),
        None => "a process that this user cannot see".to_owned(),
    };
    Some(if socket.listens {
        format!("{user} listens on port {port}")
    } else {
        format!(
            "an outgoing connection of {user} uses port {port}; the system assigns ports {range} to such connections"
        )
    })
}

/// Adds the use of a port to the error "Address already in use".
pub(crate) fn explained(port: u16, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::AddrInUse => match port_user(port) {
            Some(user) => io::Error::new(error.kind(), format!("{error}: {user}")),
            None => error,
        },
        _ => error,
    }
}

/// Adds the cause to the error of a connection that gets no local port.
///
/// The system reports the same error for an address that no interface of this host can reach.
pub fn connect_error(error: io::Error) -> io::Error {
    let is_unassigned = error.kind() == io::ErrorKind::AddrNotAvailable;
    if is_unassigned && any_port().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse) {
        let cause = port_user(0).unwrap_or_default();
        return io::Error::new(error.kind(), format!("{error}: {cause}"));
    }
    error
}

/// Binds a local port as an outgoing connection does, without reuse.
fn any_port() -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.bind(&SocketAddr::from(([0; 4], 0)).into())
}

struct Socket<'a> {
    listens: bool,
    inode: &'a str,
}

impl<'a> Socket<'a> {
    /// Parses a line of `/proc/net/tcp`; `None` for another local port.
    fn at(port: u16, line: &'a str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let (_, local) = fields.nth(1)?.rsplit_once(':')?;
        let state = fields.nth(1)?;
        let inode = fields.nth(5)?;
        let is_it = u16::from_str_radix(local, 16) == Ok(port);
        is_it.then_some(Self {
            listens: state == LISTEN,
            inode,
        })
    }
}

/// Returns the process that has this socket open.
fn owner(inode: &str) -> Option<(u32, String)> {
    let link = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_it = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
        let mut links = open
            .flatten()
            .filter_map(|entry| fs::read_link(entry.path()).ok());
        links.any(|open| open.as_os_str() == link.as_str())
    };
    let pid = pids.into_iter().find(has_it)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, name.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use socket2::{Domain, Socket as Socket2, Type};

    use super::*;

    #[test]
    fn the_process_that_uses_a_port_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let process = format!("process {} (", std::process::id());
        let user = port_user(address.port()).unwrap();
        assert!(user.starts_with(&process), "{user}");
        assert!(
            user.ends_with(&format!("listens on port {}", address.port())),
            "{user}"
        );
        // No other connection shares the port of a socket that was bound first.
        let client = Socket2::new(Domain::IPV4, Type::STREAM, None).unwrap();
        client
            .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
            .unwrap();
        client.connect(&address.into()).unwrap();
        let client = TcpStream::from(client);
        let user = port_user(client.local_addr().unwrap().port()).unwrap();
        assert!(
            user.starts_with(&format!("an outgoing connection of {process}")),
            "{user}"
        );
    }

    #[test]
    fn port_0_stands_for_the_range_of_the_system() {
        let user = port_user(0).unwrap();
        assert!(user.contains("ip_local_port_range ("), "{user}");
        let free = io::Error::from(io::ErrorKind::AddrNotAvailable);
        assert_eq!(explained(0, free).kind(), io::ErrorKind::AddrNotAvailable);
        let used = explained(0, io::Error::from(io::ErrorKind::AddrInUse));
        assert_eq!(used.kind(), io::ErrorKind::AddrInUse);
        assert!(used.to_string().contains(&user), "{used}");
    }
}
