"""Timers of torch's FileTimerClient (`TORCHELASTIC_ENABLE_FILE_TIMER`) that expire in a worker, under both launchers."""

import os
import signal

import pytest
from agents import Launcher

SCRIPT = """
import os, sys, time
import torch.distributed.elastic.timer as timer

timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
with timer.expires(after=2 if attempt == "0" else 60):
    print("attempt", attempt, flush=True)
    if attempt == "0":
        time.sleep(120)
print("done", flush=True)
"""


@pytest.mark.parametrize("launcher", ["torchrun", "ours"])
def test_a_worker_whose_timer_expires_is_killed_and_only_our_agent_restarts_it(launcher, tmp_path):
    (tmp_path / "worker.py").write_text(SCRIPT)
    environment = {**os.environ, "TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TMPDIR": str(tmp_path), "PYTHON_EXEC": os.sys.executable}
    with Launcher(launcher, "--standalone", "--max-restarts", 1, tmp_path / "worker.py", environment=environment) as agent:
        code = agent.exit_code()
    assert "attempt 0" in agent.text, agent.text
    if launcher == "torchrun":
        # Torchrun also kills its own process.
        assert (code, "attempt 1" in agent.text) == (-signal.SIGKILL, False), agent.text
    else:
        assert (code, "attempt 1" in agent.text, "done" in agent.text) == (0, True, True), agent.text
        assert not list(tmp_path.glob("watchdog_timer_*"))
