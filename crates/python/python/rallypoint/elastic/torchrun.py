"""The plug-in for `torchrun --rdzv-backend rallypoint`.

Torch finds `creator` by the entry-point group `torchrun.handlers` whenever its rendezvous is imported, by anybody. So this
file imports nothing; what a job needs is imported when there is one.
"""


def creator():
    """What torch registers under the name `rallypoint`."""
    return create_handler


def create_handler(params):
    """A handler for torchrun, from torch's parameters: `--rdzv-endpoint`, `--rdzv-id`, `--nnodes`, `--rdzv-conf`."""
    from .torch_handler import TorchRendezvousHandler

    return TorchRendezvousHandler(params)
