"""Elastic rendezvous: the nodes of a job agree on members and ranks, and form a new round when nodes join or are lost.

Names, arguments and exceptions are those of `torch.distributed.elastic.rendezvous`, and nodes that run torch's
rendezvous can be in the same job. Torch itself is not required.

    from rallypoint.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry

    parameters = RendezvousParameters("c10d", "localhost:0", "my-job", min_nodes=1, max_nodes=1)
    handler = rendezvous_handler_registry.create_handler(parameters)
    info = handler.next_rendezvous()
    print(info.rank, info.world_size, info.bootstrap_store_info)
    handler.shutdown()

| backend | nodes | ranks |
|---|---|---|
| `c10d` (`dynamic_rendezvous.DynamicRendezvousHandler`) | between a minimum and a maximum | assigned in each round |
| `rallypoint` (`native_rendezvous.NativeRendezvousHandler`) | between a minimum and a maximum | stable, or set by the user |
| `static` (`static_tcp_rendezvous.StaticTCPRendezvous`) | a fixed number | set by the user |

To store the state elsewhere, subclass `dynamic_rendezvous.RendezvousBackend`. To replace the whole handler, subclass
`RendezvousHandler`. In both cases, `rendezvous_handler_registry.register` takes a name and a function that creates the
handler.
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
