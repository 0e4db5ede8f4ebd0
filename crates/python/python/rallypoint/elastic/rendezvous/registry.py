"""Registers the built-in backends."""

from __future__ import annotations

from .api import RendezvousHandler, RendezvousParameters
from .api import rendezvous_handler_registry as handler_registry

__all__ = ["get_rendezvous_handler"]


def _create_c10d_handler(params: RendezvousParameters) -> RendezvousHandler:
    from .dynamic_rendezvous import create_c10d_handler

    return create_c10d_handler(params)


def _create_native_handler(params: RendezvousParameters) -> RendezvousHandler:
    from .native_rendezvous import create_handler

    return create_handler(params)


def _create_static_handler(params: RendezvousParameters) -> RendezvousHandler:
    from .static_tcp_rendezvous import create_rdzv_handler

    return create_rdzv_handler(params)


def _register_default_handlers() -> None:
    handler_registry.register("c10d", _create_c10d_handler)
    handler_registry.register("rallypoint", _create_native_handler)
    handler_registry.register("static", _create_static_handler)


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Creates a handler of the backend `params.backend` with `rendezvous_handler_registry`."""
    return handler_registry.create_handler(params)
