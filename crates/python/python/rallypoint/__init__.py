"""Torch's distributed stores and elastic rendezvous, in Rust.

    import rallypoint

    store = rallypoint.TCPStore("localhost", 0, is_master=True)
    store.set("greeting", "hello")
    store.get("greeting")  # b'hello'

Names, arguments, defaults and exceptions are those of `torch.distributed`. Torch itself is not required. Modules are
imported when they are first used: `import rallypoint` loads only this file.
"""

import os as _os
import sys as _sys
from _thread import RLock as _RLock

# The public names, by the module that defines them.
_EXPORTS = {
    "_rallypoint": ("FileStore", "HashStore", "PrefixStore", "Store", "TCPStore", "__version__"),
    "_exceptions": ("DistBackendError", "DistError", "DistNetworkError", "DistStoreError", "NotANumberError", "QueueEmptyError"),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}
# Submodules that are imported on first access as an attribute.
_SUBMODULES = ("elastic", "torch")

__all__ = sorted(name for name in _MODULE_OF if not name.startswith("_"))


def __getattr__(name):
    module = _MODULE_OF.get(name)
    if module is not None:
        value = getattr(_import_submodule(module), name)
        globals()[name] = value
        return value
    if name in _available_submodules():
        return _import_submodule(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _available_submodules():
    # `help` and similar tools import every name that is listed, and `rallypoint.torch` cannot be imported without
    # torch.
    if "torch" not in _sys.modules and __import__("importlib.util").util.find_spec("torch") is None:
        return tuple(name for name in _SUBMODULES if name != "torch")
    return _SUBMODULES


# If a process forks while another thread imports a module, the import never completes in the child, because that thread
# does not exist there. The child would wait for it forever. So a fork waits until the import is complete.
_import_lock = _RLock()


def _before_fork():
    _import_lock.acquire()
    _call_extension("_before_fork")


def _after_in_parent():
    _call_extension("_after_in_parent")
    _import_lock.release()


def _after_in_child():
    _call_extension("_after_in_child")
    _import_lock.release()


def _call_extension(hook):
    # The extension does not register fork hooks itself. If it registered them during an import for which a fork waits,
    # Python would skip its `before` hook for that fork and run only its `after` hooks.
    extension = _sys.modules.get(f"{__name__}._rallypoint")
    getattr(extension, hook, lambda: None)()


_os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


def _import_submodule(name):
    name, extension = f"{__name__}.{name}", f"{__name__}._rallypoint"
    with _import_lock:
        try:
            __import__(name)
        except (ModuleNotFoundError, SystemError) as error:
            # A SystemError has no attribute `name`. Python raises it if the extension module cannot be initialized.
            if getattr(error, "name", extension) != extension:
                raise
            raise ImportError(_missing_extension(), name=extension) from error
    return _sys.modules[name]


def _missing_extension():
    # Python ignores an extension module for another ABI. The exceptions are free-threaded CPython 3.13 and 3.14: they load an
    # extension module for the stable ABI, and then fail to initialize it.
    threads = "free-threaded " if "t" in _sys.abiflags else ""
    python = f"{threads}{_sys.implementation.name} {_sys.version_info.major}.{_sys.version_info.minor}"
    return (
        f"rallypoint has no extension module for {python} in {_os.path.dirname(__file__)}\n"
        "hint: install rallypoint with the pip of this Python; it has wheels for CPython 3.10 and newer, and for free-threaded "
        "CPython 3.14 and newer"
    )


def __dir__():
    return sorted({*globals(), *_MODULE_OF, *_available_submodules()})
