"""Our rendezvous as a `torch.distributed.elastic.rendezvous.RendezvousHandler`, for torch's agents. Imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch.distributed.elastic.rendezvous import api

from ..torch import as_torch_store
from .rendezvous.api import RendezvousParameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
    from .rendezvous.native_rendezvous import NativeRendezvousHandler

__all__ = ["TorchRendezvousHandler"]


class TorchRendezvousHandler(api.RendezvousHandler):
    """One node of a rendezvous, with our handler and store behind torch's interface.

    Args:
        params: torch's parameters.
        create: creates our handler from the parameters.
    """

    def __init__(
        self,
        params: api.RendezvousParameters,
        create: Callable[[RendezvousParameters], DynamicRendezvousHandler | NativeRendezvousHandler],
    ) -> None:
        self._backend = params.backend
        # Torch's parameters have the same attributes as ours.
        self._handler = create(cast(RendezvousParameters, params))

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
        assert store_info is not None, "our handlers always have bootstrap_store_info"
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
        """Closes the rendezvous for all nodes. Returns whether that succeeded."""
        return self._handler.shutdown()
