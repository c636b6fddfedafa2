"""Parameters of a rendezvous."""


class RendezvousParameters:
    """Backend, endpoint and numbers of nodes of a rendezvous.

    Args:
        backend (str): name of the backend: ``"c10d"``, ``"static"``, ``"etcd"``, ``"etcd-v2"`` or a registered name.
        endpoint (str): ``HOST[:PORT]``, or for ``c10d`` also a list of voters (``a:29400,b,c``);
            empty for a single node.
        run_id (str): run id of the job, the same on all nodes.
        min_nodes (int): smallest number of nodes, at least 1.
        max_nodes (int): largest number of nodes, at least ``min_nodes``.
        local_addr (str | None): address at which the other nodes reach this node; ``None``: rdzv finds it.
        **kwargs: options of the backend, such as ``join_timeout=600`` (seconds).

    Raises:
        ValueError: the backend is empty, or a number of nodes is out of range.

    Example:
        >>> from rdzv.rendezvous import RendezvousParameters
        >>> RendezvousParameters("c10d", "head:29400", "job", 1, 4, join_timeout="60").get_as_int("join_timeout")
        60
    """

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: "str | None" = None,
        **kwargs: object,
    ):
        if not backend:
            raise ValueError("the name of the rendezvous backend is empty")
        if min_nodes < 1:
            raise ValueError(f"min_nodes is {min_nodes}: a rendezvous has at least one node")
        if max_nodes < min_nodes:
            raise ValueError(f"max_nodes is {max_nodes}, less than min_nodes, {min_nodes}")
        self.backend, self.endpoint, self.run_id = backend, endpoint, run_id
        self.min_nodes, self.max_nodes, self.local_addr = min_nodes, max_nodes, local_addr
        self.config = kwargs

    def get(self, key: str, default: object = None) -> object:
        """Returns an option.

        Args:
            key (str): name of the option.
            default (object): the value if the option is missing.

        Returns:
            object: the value, unconverted.

        Example:
            >>> from rdzv.rendezvous import RendezvousParameters
            >>> RendezvousParameters("c10d", "", "job", 1, 1).get("key", "nothing")
            'nothing'
        """
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: "bool | None" = None) -> "bool | None":
        """Returns an option that is true or false.

        Args:
            key (str): name of the option.
            default (bool | None): the value if the option is missing.

        Returns:
            bool | None: the value. Options can be a bool, 0 or 1, or a text such as ``"true"``, ``"no"``, ``"1"``, ``"f"``.

        Raises:
            ValueError: the option has another value.

        Example:
            >>> from rdzv.rendezvous import RendezvousParameters
            >>> RendezvousParameters("c10d", "", "job", 1, 1, is_host="yes").get_as_bool("is_host")
            True
        """
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and value in (0, 1):
            return bool(value)
        if isinstance(value, str):
            if value.lower() in ("1", "true", "t", "yes", "y"):
                return True
            if value.lower() in ("0", "false", "f", "no", "n"):
                return False
        raise ValueError(f"the option {key} is {value!r}: it must be true or false")

    def get_as_int(self, key: str, default: "int | None" = None) -> "int | None":
        """Returns an option that is a whole number.

        Args:
            key (str): name of the option.
            default (int | None): the value if the option is missing.

        Returns:
            int | None: the number.

        Raises:
            ValueError: the option is not a whole number.

        Example:
            >>> from rdzv.rendezvous import RendezvousParameters
            >>> RendezvousParameters("static", "", "job", 1, 1, rank="3").get_as_int("rank")
            3
        """
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)  # type: ignore[call-overload, no-any-return]
        except (TypeError, ValueError):
            raise ValueError(f"the option {key} is {value!r}: it must be a whole number") from None


RendezvousParameters.__module__ = "rdzv.rendezvous"
