"""A worker that writes lines to standard output and standard error.

Each line is one `write`, because torch's tee splits a line that arrives in parts.
"""

import os

rank = os.environ["RANK"]
os.write(1, f"out {rank} begins\n".encode())
os.write(2, f"err {rank} begins\n".encode())
for n in range(200):
    os.write(1, f"out {rank} line {n}\n".encode())
os.write(2, f"err {rank} ends\n".encode())
os.write(1, f"out {rank} ends: ü\n".encode())
