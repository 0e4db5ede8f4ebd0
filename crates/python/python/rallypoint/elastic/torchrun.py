"""The plug-in for `torchrun --rdzv-backend rallypoint`.

Torch finds `creator` by the entry-point group `torchrun.handlers` whenever its rendezvous is imported, by anybody. So this
file imports nothing; what a job needs is imported when there is one.
"""


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.elastic.rendezvous import api


def creator() -> "Callable[[api.RendezvousParameters], api.RendezvousHandler]":
    """What torch registers under the name `rallypoint`."""
    return create_handler


def create_handler(params: "api.RendezvousParameters") -> "api.RendezvousHandler":
    """A handler for torchrun, from torch's parameters: `--rdzv-endpoint`, `--rdzv-id`, `--nnodes`, `--rdzv-conf`."""
    from .torch_handler import TorchRendezvousHandler

    return TorchRendezvousHandler(params)
