//! Process that uses a port of this host, for errors.

use std::fs;

/// State of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// Socket of a port, from `/proc/net/tcp` or `/proc/net/tcp6`.
#[derive(Debug, PartialEq, Eq)]
struct Row<'a> {
    is_listening: bool,
    inode: &'a str,
}

/// Describes the process that uses a TCP port of this host.
///
/// The process listens on the port, or has a connection from it.
/// `None` if the system names none. A process of another user is described without its name.
pub fn port_holder(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let tables: Vec<String> = tables.into_iter().flatten().collect();
    let rows: Vec<Row<'_>> = tables.iter().flat_map(|table| rows(table, port)).collect();
    let listens = rows.iter().find(|row| row.is_listening);
    let does = match listens {
        Some(_) => "listens on it",
        None => "has a connection from it",
    };
    let inode = listens.or(rows.first())?.inode;
    Some(match owner(inode) {
        Some((pid, name)) => format!("{name} (pid {pid}) {does}"),
        None => format!("a process of another user {does}"),
    })
}

/// Returns the sockets of a port in a table.
///
/// Sockets in TIME-WAIT are missing, because they have no inode.
fn rows(table: &str, port: u16) -> impl Iterator<Item = Row<'_>> {
    table.lines().skip(1).filter_map(move |line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let (state, inode) = (*fields.get(3)?, *fields.get(9)?);
        let is_of_port = u16::from_str_radix(local, 16) == Ok(port);
        (is_of_port && inode != "0").then_some(Row {
            is_listening: state == LISTENING,
            inode,
        })
    })
}

/// Returns the process that has a socket open.
fn owner(inode: &str) -> Option<(u32, String)> {
    let wanted = format!("socket:[{inode}]");
    fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let mut open = fs::read_dir(process.path().join("fd")).ok()?.flatten();
        open.find(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == &*wanted))?;
        let name = fs::read_to_string(process.path().join("comm")).ok()?;
        Some((pid, rdzv_core::escape::escape(name.trim_end())))
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_process_that_uses_a_port_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let me = format!("(pid {})", std::process::id());
        let holder = port_holder(address.port()).unwrap();
        assert!(
            holder.contains(&me) && holder.ends_with("listens on it"),
            "{holder}"
        );
        let connection = TcpStream::connect(address).unwrap();
        let holder = port_holder(connection.local_addr().unwrap().port()).unwrap();
        assert!(
            holder.contains(&me) && holder.ends_with("has a connection from it"),
            "{holder}"
        );
    }

    #[test]
    fn a_port_that_nothing_uses_has_no_holder() {
        let table = "header\n 0: 0100007F:1F90 00000000:0000 06 0:0 0:0 0 0 0 0 3\n";
        assert_eq!(rows(table, 8080).count(), 0, "TIME-WAIT");
        assert_eq!(rows(&table.replace(" 0 3", " 7 3"), 8080).count(), 1);
        assert_eq!(rows(&table.replace(" 0 3", " 7 3"), 8081).count(), 0);
    }
}
