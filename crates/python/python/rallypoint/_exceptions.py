"""The exceptions of the stores: torch's names, torch's bases.

Where torch is loaded, what is raised is also an instance of torch's class of the same name, so that code which says
`except torch.distributed.DistStoreError` catches it. Torch is never imported for that: who has not loaded it can't have
named its classes.
"""

import sys


class DistError(RuntimeError):
    """Something went wrong in the distributed library. The base of all below."""

    def __reduce__(self) -> "tuple[object, ...]":
        # By the public class: the one that also derives from torch's has no name to find it by.
        public = next(base for base in type(self).__mro__ if "_torch_twin" not in vars(base))
        return public, self.args


class DistBackendError(DistError):
    """A backend failed."""


class DistNetworkError(DistError):
    """The network failed: nobody could be reached, or a connection broke."""


class DistStoreError(DistError):
    """A store failed, or what was waited for did not come in time."""


class QueueEmptyError(DistStoreError):
    """There is nothing in the queue."""


class NotANumberError(DistNetworkError, ValueError):
    """`add` to what is no number. Torch's TCPStore raises a DistNetworkError then, its other stores a ValueError; this is both."""


for _class in (DistError, DistBackendError, DistNetworkError, DistStoreError, QueueEmptyError, NotANumberError):
    _class.__module__ = "rallypoint"
del _class


def class_to_raise(ours: type, module: str = "torch.distributed", name: "str | None" = None) -> type:
    """The class to raise for `ours`: itself, or, if `module` is loaded, one that is also its class of that name (of the nearest
    base's name that it has)."""
    torch_module = sys.modules.get(module)
    names = [name] if name else [base.__name__ for base in ours.__mro__ if base.__module__ == ours.__module__]
    candidates = (getattr(torch_module, candidate, None) for candidate in names)
    torch_class = next((candidate for candidate in candidates if isinstance(candidate, type)), None)
    if torch_class is None:
        return ours
    key = ours, torch_class
    twin = _twins.get(key)
    if twin is None:
        body = {"__module__": ours.__module__, "__doc__": ours.__doc__, "__qualname__": ours.__qualname__, "_torch_twin": True}
        twin = _twins.setdefault(key, type(ours.__name__, (ours, torch_class), body))
    return twin


_twins: "dict[tuple[type, type], type]" = {}
