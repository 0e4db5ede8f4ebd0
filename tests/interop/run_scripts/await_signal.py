"""A worker that waits for a signal and reports which one it received."""

import json
import os
import pathlib
import signal
import sys
import time

out = pathlib.Path(os.environ["OUT"])


def write(number, _):
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(signal.Signals(number).name))
    sys.exit(0)


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, write)
(out / f"ready{os.environ['RANK']}").touch()
time.sleep(300)
