"""The static rendezvous: ranks as the user gave them. Rank 0 hosts a TCP store, the others connect, and there is one round."""

from __future__ import annotations

from datetime import timedelta

from ... import _rallypoint
from .api import RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from .utils import parse_rendezvous_endpoint

__all__ = ["StaticTCPRendezvous", "create_rdzv_handler"]

_DEFAULT_TIMEOUT = 600


class StaticTCPRendezvous(RendezvousHandler):
    """One node of a static rendezvous. Two nodes that contradict each other, by rank or by world size, are told so.

    Args:
        master_addr: where rank 0 hosts the store.
        master_port: its port.
        rank: the rank of this node.
        world_size: how many nodes there are.
        run_id: which job.
        timeout: how long to wait for all of them, in seconds.
    """

    def __init__(
        self, master_addr: str, master_port: int, rank: int, world_size: int, run_id: str, timeout: int
    ) -> None:
        self.master_addr = master_addr
        self.master_port = master_port
        self.rank = rank
        self.world_size = world_size
        self.run_id = run_id
        self.timeout = timedelta(seconds=timeout)
        self._node = _rallypoint.StaticNode(master_addr, master_port, rank, world_size, run_id, timeout)

    def get_backend(self) -> str:
        """`static`."""
        return "static"

    @property
    def use_agent_store(self) -> bool:
        """The workers use the store of the rendezvous."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits until all nodes are here; the second time it only says the same again.

        Raises:
            DistStoreError: not all have come in time; says who is missing.
            DistNetworkError: the store could not be hosted or reached.
            RendezvousError: two nodes contradict each other; says which.
        """
        store, rank, world_size, workers = self._node.next_rendezvous()
        return RendezvousInfo(store, rank, world_size, RendezvousStoreInfo(*workers))

    def is_closed(self) -> bool:
        """Never."""
        return False

    def set_closed(self) -> None:
        """Does nothing: there is one round."""

    def num_nodes_waiting(self) -> int:
        """None: there is one round."""
        return 0

    def get_run_id(self) -> str:
        """Which job this is."""
        return self.run_id

    def shutdown(self) -> bool:
        """Does nothing; the store lives as long as the handler."""
        return True


def create_rdzv_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A handler as parameters ask for.

    Args:
        params: `endpoint` must be `host:port`; the option `rank` says which node this is, `timeout` how many seconds to
            wait for all of them (600).
    """
    if "rank" not in params.config:
        raise ValueError("rank is absent in RendezvousParameters.Try add --node-rank to the cmd request")
    endpoint = (params.endpoint or "").strip()
    if not endpoint:
        raise ValueError(
            "endpoint is absent in RendezvousParametersTry add --master-port and --master-addr to the cmd request"
        )
    addr, port = parse_rendezvous_endpoint(endpoint, -1)
    if port == -1:
        raise ValueError(f"Port is absent in endpoint: {endpoint}. Try launching with --master-port")
    rank, timeout = params.get_as_int("rank"), params.get_as_int("timeout", _DEFAULT_TIMEOUT)
    if rank is None:
        raise TypeError("You passed 'rank=None' as a rendezvous configuration option")
    if timeout is None:
        timeout = _DEFAULT_TIMEOUT
    return StaticTCPRendezvous(addr, port, rank, params.max_nodes, params.run_id, timeout)
