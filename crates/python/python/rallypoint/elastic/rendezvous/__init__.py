"""The nodes of a training job find each other, get ranks, and re-form when some come or go.

The names, arguments and exceptions are those of `torch.distributed.elastic.rendezvous`, and the nodes of both can be in
one job. Torch need not be installed.

    from rallypoint.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry

    parameters = RendezvousParameters("c10d", "localhost:0", "my-job", min_nodes=1, max_nodes=1)
    handler = rendezvous_handler_registry.create_handler(parameters)
    info = handler.next_rendezvous()
    print(info.rank, info.world_size, info.bootstrap_store_info)
    handler.shutdown()

| backend | nodes | ranks |
|---|---|---|
| `c10d` (`dynamic_rendezvous.DynamicRendezvousHandler`) | between a minimum and a maximum, coming and going | given by each round |
| `static` (`static_tcp_rendezvous.StaticTCPRendezvous`) | a fixed number | given by the user |

A class of your own may hold the state (`dynamic_rendezvous.RendezvousBackend`) or be the whole handler
(`RendezvousHandler`); `rendezvous_handler_registry.register` makes it known by a name.
"""

from .api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousHandlerCreator,
    RendezvousHandlerRegistry,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
    rendezvous_handler_registry,
)
from .registry import _register_default_handlers

_register_default_handlers()

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "rendezvous_handler_registry",
]
