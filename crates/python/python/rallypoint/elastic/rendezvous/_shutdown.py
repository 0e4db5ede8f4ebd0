"""The end of the process: heartbeats stop while there still is an interpreter, and who was interrupted gets to leave."""

from __future__ import annotations

import os
import weakref

from ... import _rallypoint

_nodes: weakref.WeakSet[_rallypoint.RendezvousNode] = weakref.WeakSet()
_process: int | None = None


def stop_at_exit(node: _rallypoint.RendezvousNode) -> None:
    """Stops this node's heartbeats at the end of the process."""
    global _nodes, _process
    if _process != os.getpid():
        import atexit

        # What a child has of its parent's has no heartbeats here.
        _nodes, _process = weakref.WeakSet(), os.getpid()
        atexit.register(_on_exit)
    _nodes.add(node)


def _on_exit() -> None:
    if _process != os.getpid():
        return
    for node in list(_nodes):
        node.stop_heartbeats()
    _rallypoint.await_leaving(1.0)
