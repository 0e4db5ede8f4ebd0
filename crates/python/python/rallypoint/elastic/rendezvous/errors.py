"""Why a rendezvous failed: torch's six exceptions, each with what torch leaves out. `api` has them for users.

Where torch's rendezvous is loaded too, what is raised is also of torch's class of the same name, so that code written
for torch catches it.
"""

from __future__ import annotations

from ..._exceptions import class_to_raise


class RendezvousError(Exception):
    """A rendezvous failed. The others derive from it."""

    def __reduce__(self) -> tuple[object, ...]:
        # By the public class: the one that also derives from torch's has no name to find it by.
        public = next(base for base in type(self).__mro__ if "_torch_twin" not in vars(base))
        return public, self.args


class RendezvousClosedError(RendezvousError):
    """The rendezvous has ended for good; says by whom and when, where that is known."""


class RendezvousTimeoutError(RendezvousError):
    """The time was up; says who has come, how many must, and which setting bounds it."""


class RendezvousConnectionError(RendezvousError):
    """The store or backend could not be reached or used; the exception it comes from says why."""


class RendezvousStateError(RendezvousError):
    """What lies in the store is no state; the exception it comes from says what it is."""


class RendezvousGracefulExitError(RendezvousError):
    """The rendezvous has ended, and this node was a spare that was not needed. Not a failure."""


_TORCH = "torch.distributed.elastic.rendezvous.api"
_ERRORS = (
    RendezvousError,
    RendezvousClosedError,
    RendezvousTimeoutError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousGracefulExitError,
)
for _class in _ERRORS:
    _class.__module__ = "rallypoint.elastic.rendezvous.api"
del _class
_BY_NAME = {error.__name__: error for error in _ERRORS}


def create_error(name: str, message: str) -> RendezvousError:
    """The exception `name` to raise: torch's too, where torch's rendezvous is loaded."""
    return class_to_raise(_BY_NAME[name], _TORCH)(message)


def is_rendezvous_error(error: BaseException) -> bool:
    """Whether it is one of ours, or one of torch's that a backend written for torch has raised."""
    import sys

    torch_error = getattr(sys.modules.get(_TORCH), "RendezvousError", RendezvousError)
    return isinstance(error, (RendezvousError, torch_error))
