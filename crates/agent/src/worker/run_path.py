# Runs the script argv[1] as __main__ with the remaining arguments. Records an exception in the error file.
import faulthandler
import json
import os
import runpy
import sys
import time
import traceback

del sys.argv[0]
try:
    faulthandler.enable(all_threads=True)
except Exception:
    pass  # faulthandler needs a standard error with a file descriptor.
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except Exception as error:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        info = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
        with open(path, "w") as file:
            json.dump({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": info}}, file)
    raise
