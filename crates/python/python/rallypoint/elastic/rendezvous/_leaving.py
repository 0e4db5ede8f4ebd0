"""The end of the process: heartbeats stop while there still is an interpreter, and who was interrupted gets to leave."""

from __future__ import annotations

import weakref

from ... import _rallypoint

_nodes = None


def watch(node) -> None:
    """Stops this node's heartbeats at the end of the process."""
    global _nodes
    if _nodes is None:
        import atexit

        _nodes = weakref.WeakSet()
        atexit.register(_end)
    _nodes.add(node)


def _end() -> None:
    for node in list(_nodes):
        node.stop_heartbeats()
    _rallypoint.await_leaving(1.0)
