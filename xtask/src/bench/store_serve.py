"""PyTorch's own server: prints its address, and ends with its standard input."""

import sys

from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(f"listening on 127.0.0.1:{store.port}", flush=True)
sys.stdin.read()
