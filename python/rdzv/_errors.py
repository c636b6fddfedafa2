"""The exceptions of rdzv. Users find them in ``rdzv``."""


class Error(RuntimeError):
    """Base of all errors of rdzv that are no wrong arguments."""


class StoreError(Error):
    """A store could not be reached, or refused or broke off an operation."""


class StoreTimeout(StoreError, TimeoutError):
    """Keys, or members of a barrier, did not come in time."""


class QueueEmpty(StoreError):
    """A queue was empty, and the caller did not want to wait."""


for _class in (Error, StoreError, StoreTimeout, QueueEmpty):
    _class.__module__ = "rdzv"
