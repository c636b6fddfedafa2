"""Tests that `docs/fidelity.md` contains all public names of its modules."""

import importlib
import pathlib
import pkgutil
import re

import pytest
import torch
import torch.distributed as dist
import torch.distributed.elastic
import torch.distributed.rpc as rpc
from torch.distributed.run import get_args_parser

PAGE = (pathlib.Path(__file__).parent.parent / "docs/fidelity.md").read_text()
MODULES = [
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.launcher.api",
    "torch.distributed.rendezvous",
    "torch.distributed.rpc",
    "torch.distributed.rpc.api",
    "torch.distributed.rpc.backend_registry",
    "torch.distributed.rpc.constants",
    "torch.distributed.rpc.functions",
    "torch.distributed.rpc.internal",
    "torch.distributed.rpc.options",
    "torch.distributed.rpc.rref_proxy",
    "torch.distributed.rpc.server_process_global_profiler",
]
MODULES += [
    module.name
    for module in pkgutil.walk_packages(
        torch.distributed.elastic.__path__, "torch.distributed.elastic."
    )
    # The first is a replacement for a missing package, the second needs another package.
    if not module.name.endswith((".rendezvous._etcd_stub", ".rendezvous.etcd_rendezvous_backend"))
]
CLASSES = [
    dist.Store,
    dist.TCPStore,
    dist.FileStore,
    dist.HashStore,
    dist.PrefixStore,
    rpc.RRef,
    rpc.WorkerInfo,
    torch.futures.Future,
]
# Functions of programs, loggers, and helpers that create the methods of a reference in `rpc`.
NOT_ITEMS = {"main", "method_factory", "new_method", "logger"}


def public(module):
    named = getattr(module, "__all__", None)
    if named is None:
        made_here = lambda value: getattr(value, "__module__", None) == module.__name__
        named = [name for name, value in vars(module).items() if made_here(value)]
    return {name for name in named if not name.startswith("_")} - NOT_ITEMS


def missing(names):
    return sorted(name for name in names if not re.search(rf"\b{re.escape(name)}\b", PAGE))


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_on_the_page(name):
    assert missing(public(importlib.import_module(name))) == []


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_method_is_on_the_page(kind):
    assert missing(name for name in dir(kind) if not name.startswith("_")) == []


def test_every_flag_is_on_the_page():
    flags = [action.option_strings for action in get_args_parser()._actions if action.option_strings]
    assert len(flags) > 30
    assert [names for names in flags if not any(f"`{name}`" in PAGE for name in names)] == []
