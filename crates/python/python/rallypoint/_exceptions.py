"""The exceptions of the stores, with torch's names and base classes.

If torch is loaded, each exception is also an instance of torch's class of the same name (for `NotANumberError`, of
`DistNetworkError`), so that `except torch.distributed.DistStoreError` catches it. Torch is never imported for that: a
program that has not loaded torch cannot refer to torch's classes.
"""

import sys


class DistError(RuntimeError):
    """The base class of the exceptions of stores."""

    def __reduce__(self) -> "tuple[object, ...]":
        # Pickle by the public class: the class that also derives from torch's cannot be imported by name.
        public = next(base for base in type(self).__mro__ if "_derives_from_torch" not in vars(base))
        return public, self.args


class DistBackendError(DistError):
    """A backend failed. Exists for compatibility with torch; this package does not raise it."""


class DistNetworkError(DistError):
    """The server could not be reached, a connection was lost, or a port is in use."""


class DistStoreError(DistError):
    """An operation timed out, or the store could not carry it out."""


class QueueEmptyError(DistStoreError):
    """The queue is empty."""


class NotANumberError(DistNetworkError, ValueError):
    """`add` was called on a value that is not an integer.

    Torch's TCPStore raises a DistNetworkError in this case, and torch's other stores a ValueError. This class is both.
    """


for _class in (DistError, DistBackendError, DistNetworkError, DistStoreError, QueueEmptyError, NotANumberError):
    _class.__module__ = "rallypoint"
del _class


def class_to_raise(ours: type, module: str = "torch.distributed", name: "str | None" = None) -> type:
    """Returns the class to raise for our class `ours`.

    If `module` is loaded, that is a class derived from both `ours` and torch's class. Otherwise it is `ours`.

    Args:
        ours: one of our exception classes.
        module: the module with torch's class.
        name: the name of torch's class. By default, it is the name of `ours`, or of the nearest base of `ours` for
            which `module` has a class.
    """
    torch_module = sys.modules.get(module)
    names = [name] if name else [base.__name__ for base in ours.__mro__ if base.__module__ == ours.__module__]
    candidates = (getattr(torch_module, candidate, None) for candidate in names)
    torch_class = next((candidate for candidate in candidates if isinstance(candidate, type)), None)
    if torch_class is None:
        return ours
    key = ours, torch_class
    combined = _combined_classes.get(key)
    if combined is None:
        body = {"__module__": ours.__module__, "__doc__": ours.__doc__, "__qualname__": ours.__qualname__, "_derives_from_torch": True}
        combined = _combined_classes.setdefault(key, type(ours.__name__, (ours, torch_class), body))
    return combined


# The classes derived from both one of our classes and one of torch's, by that pair.
_combined_classes: "dict[tuple[type, type], type]" = {}
