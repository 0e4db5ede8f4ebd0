"""The plug-in for `torchrun --rdzv-backend rallypoint`.

Torch loads `creator` through the entry-point group `torchrun.handlers` whenever its rendezvous module is imported. So
this file imports nothing until a handler is created.
"""


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.elastic.rendezvous import api


def creator() -> "Callable[[api.RendezvousParameters], api.RendezvousHandler]":
    """Returns the function that torch registers under the name `rallypoint`."""
    return create_handler


def create_handler(params: "api.RendezvousParameters") -> "api.RendezvousHandler":
    """Creates a handler for torchrun.

    Args:
        params: torch's parameters, from `--rdzv-endpoint`, `--rdzv-id`, `--nnodes` and `--rdzv-conf`.

    Raises:
        ValueError: an option is unknown or invalid.
        RendezvousConnectionError: the store could not be hosted or reached.
    """
    from .torch_handler import TorchRendezvousHandler

    return TorchRendezvousHandler(params)
