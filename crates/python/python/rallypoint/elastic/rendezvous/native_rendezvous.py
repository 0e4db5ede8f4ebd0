"""The native rendezvous: a coordinator with leases, which is replicated among the nodes of the job."""

from __future__ import annotations

import os
from typing import Any

from ... import _rallypoint
from .api import RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from .errors import is_rendezvous_error

__all__ = ["NativeRendezvousHandler", "create_handler"]

_ROUND_VARIABLE = "RALLYPOINT_ROUND"


class NativeRendezvousHandler(RendezvousHandler):
    """One node of a native rendezvous.

    Every node runs a server. The servers replicate the coordinator, so the job survives the loss of any node if it has
    three or more. Workers that this process starts after `next_rendezvous` find the number of the round in the
    environment variable `RALLYPOINT_ROUND`.

    The node ends with this object, and with the node the store of a round in which it has rank 0. So keep the object until
    all nodes have finished.

    This handler does not watch the workers: nothing stops them if this process is stopped or its node is cut off. Use
    `rallypoint run` to have them stopped before the node is replaced.

    Args:
        endpoint: the `HOST:PORT` of one or more nodes, separated by commas. The first one founds the job.
        run_id: the run id of the job.
        min_nodes: the minimum number of nodes in a round.
        max_nodes: the maximum number of nodes in a round.
        local_addr: the address at which other nodes reach this one. By default it is detected.
        **config: further options, with times in seconds. The page "Rendezvous options" of the documentation lists them.

    Raises:
        ValueError: an argument is invalid. The message lists all problems.
        RendezvousConnectionError: the server of this node could not be started.
    """

    def __init__(
        self,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **config: Any,
    ) -> None:
        self._run_id = run_id
        texts = {name: None if value is None else str(value) for name, value in config.items()}
        self._node = _rallypoint.NativeNode(endpoint, run_id, min_nodes, max_nodes, local_addr, texts)

    def get_backend(self) -> str:
        """Returns the name of the backend, `rallypoint`."""
        return "rallypoint"

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers may use the agent's store: true, unless `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` is set."""
        return os.getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits until this node is in a round.

        Raises:
            RendezvousClosedError: the job is closed. The message names the node that closed it, when and why.
            RendezvousTimeoutError: too few nodes joined within the join timeout.
            RendezvousConnectionError: the store of the round could not be reached.
            RendezvousGracefulExitError: the job has finished while this node was a spare, or an operator has drained the
                node. This is not a failure.
            RendezvousError: this node can't be in the job, for example because its number of nodes differs.
        """
        (store, rank, world_size, workers), round_number = self._node.next_rendezvous()
        os.environ[_ROUND_VARIABLE] = str(round_number)
        return RendezvousInfo(store, rank, world_size, RendezvousStoreInfo(*workers))

    def is_closed(self) -> bool:
        """Returns whether the rendezvous is closed."""
        return self._node.is_closed()

    def set_closed(self) -> None:
        """Closes the rendezvous for all nodes."""
        self._node.set_closed()

    def num_nodes_waiting(self) -> int:
        """Returns the number of nodes that wait for the next round, or 1 if the coordinator has ended the round.

        The coordinator ends a round when a node is lost, drained or excluded, when a worker of a node of `rallypoint run`
        has failed, and when nodes wait.
        """
        return self._node.num_nodes_waiting()

    def get_run_id(self) -> str:
        """Returns the run id of the job."""
        return self._run_id

    def shutdown(self) -> bool:
        """Closes the rendezvous for all nodes, and waits up to 5 s until they don't need this node any more.

        Returns whether closing succeeded.
        """
        try:
            self._node.shut_down()
        except Exception as error:
            if not is_rendezvous_error(error):
                raise
            import logging

            logging.getLogger(__name__).warning(
                "The node '%s' has failed to shutdown the rendezvous '%s' due to an error of type %s: %s",
                self._node.name,
                self._run_id,
                type(error).__name__,
                error,
            )
            return False
        return True

    def __repr__(self) -> str:
        return f"NativeRendezvousHandler({self._node.name!r}, run_id={self._run_id!r})"


def create_handler(params: RendezvousParameters) -> NativeRendezvousHandler:
    """Creates a handler from parameters, for the registry.

    Raises:
        ValueError: a parameter is invalid.
        RendezvousConnectionError: the server of this node could not be started.
    """
    return NativeRendezvousHandler(
        params.endpoint, params.run_id, params.min_nodes, params.max_nodes, params.local_addr, **params.config
    )
