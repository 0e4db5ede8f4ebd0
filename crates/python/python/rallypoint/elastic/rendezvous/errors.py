"""The exceptions of a rendezvous, with torch's names. `api` exports them.

If torch's rendezvous is loaded, each exception is also an instance of torch's class of the same name, so that code
written for torch catches it.
"""

from __future__ import annotations

from ..._exceptions import class_to_raise


class RendezvousError(Exception):
    """The base class of the exceptions of a rendezvous."""

    def __reduce__(self) -> tuple[object, ...]:
        # Pickle as the public class, because the class that also derives from torch's cannot be imported by name.
        public = next(base for base in type(self).__mro__ if "_derives_from_torch" not in vars(base))
        return public, self.args


class RendezvousClosedError(RendezvousError):
    """The rendezvous is closed. The message says which node closed it and when, if that is known."""


class RendezvousTimeoutError(RendezvousError):
    """Joining or closing timed out. The message names the setting and, for a join, up to 16 of the nodes that joined."""


class RendezvousConnectionError(RendezvousError):
    """The store or backend could not be reached or used. `__cause__` has the reason."""


class RendezvousStateError(RendezvousError):
    """The stored value is not a state that this node can use, or a new state can't be stored. `__cause__` has the reason."""


class RendezvousGracefulExitError(RendezvousError):
    """The rendezvous is closed, and this node was a spare that was not needed. This is not a failure."""


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
    """Creates the exception `name`. It is an instance of torch's class, too, if torch's rendezvous is loaded."""
    return class_to_raise(_BY_NAME[name], _TORCH)(message)


def is_rendezvous_error(error: BaseException) -> bool:
    """Returns whether `error` is our RendezvousError or torch's, which a backend written for torch may raise."""
    import sys

    torch_error = getattr(sys.modules.get(_TORCH), "RendezvousError", RendezvousError)
    return isinstance(error, (RendezvousError, torch_error))
