"""Endpoints and options as people write them."""

from __future__ import annotations

from typing import Optional, Tuple

from ... import _rallypoint

__all__ = ["parse_rendezvous_endpoint"]


def parse_rendezvous_endpoint(endpoint: Optional[str], default_port: int) -> Tuple[str, int]:
    """Host and port of an endpoint. An empty one is `localhost`; the port may be missing.

    An IPv6 address without brackets is an address: `::1` has no port. Torch takes its last part for one.

    Args:
        endpoint: `host`, `host:port` or `[address]:port`.
        default_port: the port if the endpoint names none.
    """
    host, port = _rallypoint.parse_rendezvous_endpoint(endpoint or "")
    return host, default_port if port is None else port
