"""Torch's `torch.distributed.elastic`, as far as it is about nodes finding each other.

| module | torch's |
|---|---|
| `rallypoint.elastic.rendezvous` | `torch.distributed.elastic.rendezvous` |
| `rallypoint.elastic.utils` | `torch.distributed.elastic.utils.store` and `.distributed` |
| `rallypoint.elastic.torchrun` | nothing: it is the plug-in for `torchrun --rdzv-backend rallypoint` |
"""
