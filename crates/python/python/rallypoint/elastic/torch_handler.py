"""Our rendezvous as torch's agents want it: a `torch.distributed.elastic.rendezvous.RendezvousHandler`. Needs torch."""

from __future__ import annotations

from typing import cast

from torch.distributed.elastic.rendezvous import api

from ..torch import as_torch_store
from .rendezvous.api import RendezvousParameters
from .rendezvous.dynamic_rendezvous import create_c10d_handler

__all__ = ["TorchRendezvousHandler"]


class TorchRendezvousHandler(api.RendezvousHandler):
    """One node of a dynamic rendezvous, with our handler and our store inside.

    The nodes of a job that run torchrun's own `c10d` backend, or `rallypoint join`, can be in the same rounds.

    Args:
        params: torch's parameters; the endpoint and the options are those of the `c10d` backend.
    """

    def __init__(self, params: api.RendezvousParameters) -> None:
        self._backend = params.backend
        # Torch's parameters have all that ours have.
        self._handler = create_c10d_handler(cast(RendezvousParameters, params))

    def get_backend(self) -> str:
        """The name under which it was asked for."""
        return self._backend

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers may use the agent's store."""
        return self._handler.use_agent_store

    def next_rendezvous(self) -> api.RendezvousInfo:
        """Waits until this node is in a round. The store it returns is a `torch.distributed.Store`."""
        info = self._handler.next_rendezvous()
        store_info = info.bootstrap_store_info
        assert store_info is not None, "a dynamic rendezvous always says where"
        torch_store_info = api.RendezvousStoreInfo(store_info.master_addr, store_info.master_port)
        return api.RendezvousInfo(as_torch_store(info.store), info.rank, info.world_size, torch_store_info)

    def is_closed(self) -> bool:
        """Whether the rendezvous has ended for good."""
        return self._handler.is_closed()

    def set_closed(self) -> None:
        """Ends the rendezvous for everybody."""
        self._handler.set_closed()

    def num_nodes_waiting(self) -> int:
        """How many nodes wait for the next round."""
        return self._handler.num_nodes_waiting()

    def get_run_id(self) -> str:
        """Which job this is."""
        return self._handler.get_run_id()

    def shutdown(self) -> bool:
        """Ends this node's part and the rendezvous with it. Whether that worked."""
        return self._handler.shutdown()
