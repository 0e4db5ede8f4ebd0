"""A worker that fails on rank 0, in the way that its argument names. The workers of other ranks wait to be stopped."""

import os
import signal
import sys
import time

how = sys.argv[1]
if os.environ["RANK"] != "0":
    time.sleep(300)
print("on standard error, before it fails", file=sys.stderr, flush=True)
if how == "exit":
    sys.exit(7)
if how == "signal":
    os.kill(os.getpid(), signal.SIGSEGV)
if how == "exception":
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main():
        raise ValueError("what went wrong")

    main()
if how in ("string", "object"):
    import json

    # Torch's `record` writes an error file whose message is an object. Other programs may write a string as the message.
    error = {"message": "in its own words", "timestamp": int(time.time())}
    if how == "object":
        info = {"py_callstack": "Traceback\nValueError: what went wrong", "timestamp": str(int(time.time()))}
        error = {"message": {"message": "ValueError: what went wrong", "extraInfo": info}}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump(error, file)
    sys.exit(3)
if how == "raise":
    raise ValueError("what went wrong")
