class Error(RuntimeError): ...
class StoreError(Error): ...
class StoreTimeout(StoreError, TimeoutError): ...
class QueueEmpty(StoreError): ...

class CollectiveError(Error):
    rank: int | None
    peer: int | None
    peers: tuple[int, ...]
    operation: str | None
    cause: str | None
    elapsed: float | None
    def __init__(
        self,
        text: str = "",
        *,
        rank: int | None = None,
        peer: int | None = None,
        peers: tuple[int, ...] = (),
        operation: str | None = None,
        cause: str | None = None,
        elapsed: float | None = None,
    ) -> None: ...

class CollectiveTimeout(CollectiveError, TimeoutError): ...
class RankLost(CollectiveError, ConnectionError): ...
