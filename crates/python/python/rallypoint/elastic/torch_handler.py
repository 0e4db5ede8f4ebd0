"""Our rendezvous as a `torch.distributed.elastic.rendezvous.RendezvousHandler`, for torch's agents. Imports torch."""

from __future__ import annotations

from typing import cast

from torch.distributed.elastic.rendezvous import api

from ..torch import as_torch_store
from .rendezvous.api import RendezvousParameters
from .rendezvous.dynamic_rendezvous import create_c10d_handler

__all__ = ["TorchRendezvousHandler"]


class TorchRendezvousHandler(api.RendezvousHandler):
    """One node of a dynamic rendezvous, with our handler and store behind torch's interface.

    Nodes that use torchrun's own `c10d` backend or `rallypoint join` can be in the same rounds.

    Args:
        params: torch's parameters. The endpoint and the options are those of the `c10d` backend.
    """

    def __init__(self, params: api.RendezvousParameters) -> None:
        self._backend = params.backend
        # Torch's parameters have the same attributes as ours.
        self._handler = create_c10d_handler(cast(RendezvousParameters, params))

    def get_backend(self) -> str:
        """Returns the backend name from the parameters."""
        return self._backend

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers may use the agent's store."""
        return self._handler.use_agent_store

    def next_rendezvous(self) -> api.RendezvousInfo:
        """Waits until this node is in a round. The round's store is a `torch.distributed.Store`."""
        info = self._handler.next_rendezvous()
        store_info = info.bootstrap_store_info
        assert store_info is not None, "a dynamic rendezvous always has bootstrap_store_info"
        torch_store_info = api.RendezvousStoreInfo(store_info.master_addr, store_info.master_port)
        return api.RendezvousInfo(as_torch_store(info.store), info.rank, info.world_size, torch_store_info)

    def is_closed(self) -> bool:
        """Returns whether the rendezvous is closed."""
        return self._handler.is_closed()

    def set_closed(self) -> None:
        """Closes the rendezvous for all nodes."""
        self._handler.set_closed()

    def num_nodes_waiting(self) -> int:
        """Returns the number of nodes that wait for the next round."""
        return self._handler.num_nodes_waiting()

    def get_run_id(self) -> str:
        """Returns the run id of the job."""
        return self._handler.get_run_id()

    def shutdown(self) -> bool:
        """Stops the heartbeats and closes the rendezvous for all nodes. Returns whether that succeeded."""
        return self._handler.shutdown()
