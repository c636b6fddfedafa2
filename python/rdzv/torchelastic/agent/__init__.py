"""Agents of the first version of torchelastic."""
