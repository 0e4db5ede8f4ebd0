"""Parses endpoints."""

from __future__ import annotations

from typing import Optional, Tuple

from ... import _rallypoint

__all__ = ["parse_rendezvous_endpoint"]


def parse_rendezvous_endpoint(endpoint: Optional[str], default_port: int) -> Tuple[str, int]:
    """Returns the host and port of an endpoint. The host of an empty endpoint is `localhost`.

    An IPv6 address without brackets, such as `::1`, has no port. Torch would take its last part for a port.

    Args:
        endpoint: `host`, `host:port` or `[address]:port`.
        default_port: the port to return if the endpoint has none.

    Raises:
        ValueError: the endpoint is invalid.
    """
    host, port = _rallypoint.parse_rendezvous_endpoint(endpoint or "")
    return host, default_port if port is None else port
