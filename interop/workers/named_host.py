"""Runs a command on a host with a given name, in new namespaces.

It needs `unshare -rmnu`. Arguments: the name of the host, the text of its hosts file, the name
server, and the command. The name server is `dns` (knows the host), `silent` (does not answer) or
`none`. Prints the full name that Python finds for the host (an empty line with `silent`), and then
runs the command.
"""

import socket
import struct
import subprocess
import sys
import tempfile
import threading

DOMAIN = "cluster.test"
ADDRESS = "127.0.0.9"
A, PTR = 1, 12


def question(query: bytes) -> tuple[str, int, int]:
    """Returns name, type and end of the question in a query."""
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    return ".".join(labels).lower(), struct.unpack_from("!H", query, at + 1)[0], at + 5


def labels(name: str) -> bytes:
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"


def serve(server: socket.socket, known: dict[tuple[str, int], bytes]) -> None:
    while True:
        query, client = server.recvfrom(512)
        name, kind, end = question(query)
        data = known.get((name, kind))
        # A response to a recursive query, without an error or with "no such name".
        names = {name for name, _ in known}
        flags = 0x8180 if name in names else 0x8183
        head = query[:2] + struct.pack("!HHHHH", flags, 1, int(data is not None), 0, 0)
        answer = b""
        if data is not None:
            answer = b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 60, len(data)) + data
        server.sendto(head + query[12:end] + answer, client)


def replaced(path: str, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write(text)
    subprocess.run(["mount", "--bind", file.name, path], check=True)


def main() -> None:
    name, hosts, server_kind, *command = sys.argv[1:]
    socket.sethostname(name)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    options = "options timeout:10 attempts:1\n"
    replaced("/etc/resolv.conf", f"nameserver 127.0.0.1\nsearch {DOMAIN}\n{options}")
    replaced("/etc/nsswitch.conf", "hosts: files dns\n")
    replaced("/etc/hosts", hosts)
    full = f"{name}.{DOMAIN}"
    reverse = ".".join(reversed(ADDRESS.split("."))) + ".in-addr.arpa"
    known = {(full, A): socket.inet_aton(ADDRESS), (reverse, PTR): labels(full)}
    if server_kind != "none":
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind(("127.0.0.1", 53))
        if server_kind == "dns":
            threading.Thread(target=serve, args=(server, known), daemon=True).start()
    print(socket.getfqdn() if server_kind != "silent" else "", flush=True)
    sys.exit(subprocess.run(command).returncode)


main()
