"""A worker that writes some lines to both streams."""

import os
import sys

rank = os.environ["RANK"]
print(f"out {rank} begins")
print(f"err {rank} begins", file=sys.stderr)
for n in range(200):
    print(f"out {rank} line {n}")
print(f"err {rank} ends", file=sys.stderr)
print(f"out {rank} ends: ü")
