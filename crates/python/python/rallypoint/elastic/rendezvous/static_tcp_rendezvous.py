"""The static rendezvous: the user sets the ranks, rank 0 hosts a TCP store, and there is one round."""

from __future__ import annotations

from datetime import timedelta

from ... import _rallypoint
from .api import RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from .utils import parse_rendezvous_endpoint

__all__ = ["StaticTCPRendezvous", "create_rdzv_handler"]

_DEFAULT_TIMEOUT = 600


class StaticTCPRendezvous(RendezvousHandler):
    """One node of a static rendezvous.

    Args:
        master_addr: the host of the store, which is the node with rank 0.
        master_port: the port of the store.
        rank: the rank of this node.
        world_size: the number of nodes.
        run_id: the run id of the job.
        timeout: how long to wait for all nodes, in seconds.

    Raises:
        ValueError: an argument is invalid.
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
        """Returns the name of the backend, `static`."""
        return "static"

    @property
    def use_agent_store(self) -> bool:
        """True: the workers use the store of the rendezvous."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits until all nodes have joined. Later calls return the same round.

        Raises:
            DistStoreError: not all nodes joined in time. The message lists the missing ranks.
            DistNetworkError: the store could not be hosted or reached.
            RendezvousError: two nodes have the same rank, or different world sizes. The message names them.
        """
        store, rank, world_size, workers = self._node.next_rendezvous()
        return RendezvousInfo(store, rank, world_size, RendezvousStoreInfo(*workers))

    def is_closed(self) -> bool:
        """Returns False: a static rendezvous is never closed."""
        return False

    def set_closed(self) -> None:
        """Does nothing, because there is only one round."""

    def num_nodes_waiting(self) -> int:
        """Returns 0, because there is only one round."""
        return 0

    def get_run_id(self) -> str:
        """Returns the run id of the job."""
        return self.run_id

    def shutdown(self) -> bool:
        """Returns True. The store is closed when the handler and the stores that it returned are deleted."""
        return True


def create_rdzv_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Creates a handler from parameters.

    Args:
        params: the parameters. `endpoint` must be `host:port`. The option `rank` is the rank of this node, and
            `timeout` is how long to wait for all nodes, in seconds. The default is 600.

    Raises:
        ValueError: the rank, the endpoint or its port is missing or invalid.
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
