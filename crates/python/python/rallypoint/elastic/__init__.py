"""The rendezvous part of `torch.distributed.elastic`.

| module | torch's module |
|---|---|
| `rallypoint.elastic.rendezvous` | `torch.distributed.elastic.rendezvous` |
| `rallypoint.elastic.utils` | `torch.distributed.elastic.utils.store` and `.distributed` |
| `rallypoint.elastic.torchrun` | none; it is the plug-in for the backends `rallypoint` and `rallypoint-c10d` of torchrun |
"""
