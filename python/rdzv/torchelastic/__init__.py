"""Names of the first version of torchelastic, over the classes of rdzv.

A program replaces ``torchelastic`` by ``rdzv.torchelastic`` in its imports. The package has the
modules ``agent.server.api`` and ``rendezvous``. New programs use :mod:`rdzv.elastic` and
:mod:`rdzv.rendezvous`.
"""
