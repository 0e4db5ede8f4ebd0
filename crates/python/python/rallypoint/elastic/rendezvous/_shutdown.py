"""Stops heartbeats when the process exits, and waits up to 1 s for nodes that leave after an interrupted call."""

from __future__ import annotations

import os
import weakref

from ... import _rallypoint

_nodes: weakref.WeakSet[_rallypoint.RendezvousNode] = weakref.WeakSet()
_process: int | None = None


def stop_at_exit(node: _rallypoint.RendezvousNode) -> None:
    """Registers a node whose heartbeats stop when the process exits."""
    global _nodes, _process
    if _process != os.getpid():
        import atexit

        # A forked child sends no heartbeats for its parent's nodes, so it starts with an empty set.
        _nodes, _process = weakref.WeakSet(), os.getpid()
        atexit.register(_on_exit)
    _nodes.add(node)


def _on_exit() -> None:
    if _process != os.getpid():
        return
    for node in list(_nodes):
        node.stop_heartbeats()
    _rallypoint.await_leaving(1.0)
