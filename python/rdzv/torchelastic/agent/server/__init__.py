"""Agents of the first version of torchelastic; ``api`` has them all."""

from rdzv.torchelastic.agent.server.api import *  # noqa: F403
from rdzv.torchelastic.agent.server.api import __all__ as __all__
