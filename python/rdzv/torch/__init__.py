"""rdzv for PyTorch."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("rdzv.torch needs torch: pip install rdzv[torch]") from error
