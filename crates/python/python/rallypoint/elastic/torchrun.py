"""The plug-in for torchrun: the backends `rallypoint` and `rallypoint-c10d`.

| backend | rendezvous |
|---|---|
| `rallypoint` | the native rendezvous; all nodes of the job need this package or `rallypoint run` |
| `rallypoint-c10d` | our handler and store with torch's protocol; nodes with torchrun's own `c10d` can be in the same job |

Torch loads the creators through the entry-point group `torchrun.handlers` whenever its rendezvous module is imported. So
this file imports nothing until a handler is created.
"""


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.elastic.rendezvous import api


def creator() -> "Callable[[api.RendezvousParameters], api.RendezvousHandler]":
    """Returns the function that torch registers under the name `rallypoint`."""
    return create_handler


def c10d_creator() -> "Callable[[api.RendezvousParameters], api.RendezvousHandler]":
    """Returns the function that torch registers under the name `rallypoint-c10d`."""
    return create_c10d_handler


def create_handler(params: "api.RendezvousParameters") -> "api.RendezvousHandler":
    """Creates a handler of the native rendezvous for torchrun.

    Args:
        params: torch's parameters, from `--rdzv-endpoint`, `--rdzv-id`, `--nnodes` and `--rdzv-conf`. The endpoint is the
            `HOST:PORT` of one or more nodes, separated by commas.

    Raises:
        ValueError: an option is unknown or invalid, or there is no endpoint.
        RendezvousConnectionError: the server of this node could not be started.
    """
    from .rendezvous.native_rendezvous import create_handler as create
    from .torch_handler import TorchRendezvousHandler

    return TorchRendezvousHandler(params, create)


def create_c10d_handler(params: "api.RendezvousParameters") -> "api.RendezvousHandler":
    """Creates a handler for torchrun that can be in one job with torchrun's own `c10d` backend.

    Args:
        params: torch's parameters, from `--rdzv-endpoint`, `--rdzv-id`, `--nnodes` and `--rdzv-conf`.

    Raises:
        ValueError: an option is unknown or invalid.
        RendezvousConnectionError: the store could not be hosted or reached.
    """
    from .rendezvous.dynamic_rendezvous import create_c10d_handler as create
    from .torch_handler import TorchRendezvousHandler

    return TorchRendezvousHandler(params, create)
