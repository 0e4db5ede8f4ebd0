"""Torch's distributed stores and elastic rendezvous, in Rust.

    import rallypoint

    store = rallypoint.TCPStore("localhost", 0, is_master=True)
    store.set("greeting", "hello")
    store.get("greeting")  # b'hello'

Names, arguments, defaults and exceptions are those of `torch.distributed`; torch itself is not needed. What is not used is
not imported: `import rallypoint` loads nothing but this file.
"""

import os as _os
import sys as _sys
from _thread import RLock as _RLock

# What the package offers, and which of its modules has it.
_HOMES = {
    "_rallypoint": ("FileStore", "HashStore", "PrefixStore", "Store", "TCPStore", "__version__"),
    "_exceptions": ("DistBackendError", "DistError", "DistNetworkError", "DistStoreError", "NotANumberError", "QueueEmptyError"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
# Modules that are found as attributes without being imported first.
_MODULES = ("elastic", "torch")

__all__ = sorted(name for name in _HOME_OF if not name.startswith("_"))


def __getattr__(name):
    home = _HOME_OF.get(name)
    if home is not None:
        value = getattr(_module(home), name)
        globals()[name] = value
        return value
    if name in _modules():
        return _module(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _modules():
    # Without torch there is no module for it; `help` and the like go through all that is listed.
    if "torch" not in _sys.modules and __import__("importlib.util").util.find_spec("torch") is None:
        return tuple(name for name in _MODULES if name != "torch")
    return _MODULES


# A child that is forked while another thread imports a module would wait for that thread, which it doesn't have. So a fork
# waits until the import is done.
_importing = _RLock()


def _before_fork():
    _importing.acquire()
    _call_extension("_before_fork")


def _after_in_parent():
    _call_extension("_after_in_parent")
    _importing.release()


def _after_in_child():
    _call_extension("_after_in_child")
    _importing.release()


def _call_extension(hook):
    # An extension that registered its own hooks while a fork waits for its import would be called only after the fork.
    extension = _sys.modules.get(f"{__name__}._rallypoint")
    getattr(extension, hook, lambda: None)()


_os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


def _module(name):
    name = f"{__name__}.{name}"
    with _importing:
        try:
            __import__(name)
        except (ModuleNotFoundError, SystemError) as error:
            if "_rallypoint" not in str(error):
                raise
            raise ImportError(_missing_extension(), name=f"{__name__}._rallypoint") from error
    return _sys.modules[name]


def _missing_extension():
    # Python ignores an extension module for another ABI, except that free-threaded CPython 3.13 and 3.14 load one for the stable ABI and
    # fail to initialize it.
    threads = "free-threaded " if "t" in _sys.abiflags else ""
    python = f"{threads}{_sys.implementation.name} {_sys.version_info.major}.{_sys.version_info.minor}"
    return (
        f"rallypoint has no extension module for {python} in {_os.path.dirname(__file__)}\n"
        "hint: install rallypoint with the pip of this Python; it has wheels for CPython 3.10 and newer, and for free-threaded "
        "CPython 3.14 and newer"
    )


def __dir__():
    return sorted({*globals(), *_HOME_OF, *_modules()})
