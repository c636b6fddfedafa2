"""Store client of rdzv, controlled through the program `store_client`."""

import subprocess

from launching import STORE_CLIENT, environment


class StoreError(Exception):
    """Error that the client returned."""


def quote(key: str) -> str:
    plain = "".join(
        chr(byte) if 0x20 < byte < 0x7F and byte != ord("%") else f"%{byte:02x}"
        for byte in key.encode()
    )
    return plain or "%"


def encode(value: str | bytes) -> str:
    data = value.encode() if isinstance(value, str) else value
    return data.hex() or "-"


def decode(word: str) -> bytes:
    return b"" if word == "-" else bytes.fromhex(word)


class OurStore:
    """Process with one store, with asynchronous calls for tests that wait."""

    def __init__(self, url: str, *options):
        self.process = subprocess.Popen(
            [STORE_CLIENT, *map(str, options), url],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        greeting = self.process.stdout.readline().strip()
        if greeting != "ready":
            self.close()
            raise StoreError(greeting.removeprefix("error "))

    @classmethod
    def connected(cls, server, *options):
        return cls(f"tcp://{server.host}:{server.port}", "--timeout-ms", 30_000, *options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Closes the store like a program that exits."""
        if self.process.stdin.closed:
            return
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()

    def kill(self):
        """Kills the process, so that it cannot close the store."""
        self.process.kill()
        self.close()

    def begin(self, *words) -> None:
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def collect(self) -> str:
        answer = self.process.stdout.readline().rstrip("\n")
        if answer.startswith("error "):
            raise StoreError(answer.removeprefix("error "))
        return answer

    def call(self, *words) -> str:
        self.begin(*words)
        return self.collect()

    # These are the names of PyTorch's client, to make each test comparable with its counterpart.

    def set(self, key, value):
        assert self.call("set", quote(key), encode(value)) == "ok"

    def get(self, key) -> bytes:
        return decode(self.call("get", quote(key)))

    def append(self, key, value):
        assert self.call("append", quote(key), encode(value)) == "ok"

    def add(self, key, delta) -> int:
        return int(self.call("add", quote(key), delta))

    def compare_set(self, key, expected, desired) -> bytes:
        return decode(self.call("compare_set", quote(key), encode(expected), encode(desired)))

    def check(self, keys) -> bool:
        return self.call("check", *map(quote, keys)) == "true"

    def wait(self, keys, milliseconds):
        assert self.call("wait", milliseconds, *map(quote, keys)) == "ok"

    def delete_key(self, key) -> bool:
        return self.call("delete", quote(key)) == "true"

    def num_keys(self) -> int:
        return int(self.call("num_keys"))

    def list_keys(self) -> list[str]:
        words = self.call("list_keys").split()
        return sorted("" if word == "%" else _unquote(word) for word in words)

    def multi_get(self, keys) -> list[bytes]:
        return [decode(word) for word in self.call("multi_get", *map(quote, keys)).split()]

    def multi_set(self, keys, values):
        pairs = [
            word
            for key, value in zip(keys, values, strict=True)
            for word in (quote(key), encode(value))
        ]
        assert self.call("multi_set", *pairs) == "ok"

    def queue_push(self, key, value):
        assert self.call("queue_push", quote(key), encode(value)) == "ok"

    def queue_pop(self, key, block=True) -> bytes:
        return decode(self.call("queue_pop" if block else "queue_try_pop", quote(key)))

    def queue_len(self, key) -> int:
        return int(self.call("queue_len", quote(key)))

    def barrier(self, key, world_size, milliseconds=30_000):
        assert self.call("barrier", quote(key), world_size, milliseconds) == "ok"

    def set_timeout(self, milliseconds):
        assert self.call("timeout", milliseconds) == "ok"

    def use_clone(self):
        assert self.call("clone") == "ok"


def _unquote(word: str) -> str:
    first, *parts = word.split("%")
    data = first.encode()
    for part in parts:
        data += bytes.fromhex(part[:2]) + part[2:].encode()
    return data.decode()
