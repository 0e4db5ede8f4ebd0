"""Tests of the artifacts of `scripts/release`. `scripts/test release` builds them and sets RALLYPOINT_RELEASE to their directory."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def release():
    """The directory with the artifacts."""
    named = os.environ.get("RALLYPOINT_RELEASE")
    if not named:
        pytest.skip("RALLYPOINT_RELEASE does not name a folder; scripts/test release sets it")
    return pathlib.Path(named).resolve()


@pytest.fixture(scope="session")
def version():
    return (ROOT / "Cargo.toml").read_text().partition('\nversion = "')[2].partition('"')[0]


class Environment:
    """A Python environment. The PATH of its commands has only the environment's programs: no Rust, no compiler, no shell."""

    def __init__(self, folder, python):
        self.folder = folder
        made = subprocess.run([sys.executable, "-m", "uv", "venv", "--quiet", "--seed", "--python", python, folder], capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"no Python {python} here: {made.stderr.strip().splitlines()[-1]}")

    def run(self, *command, check=True):
        environment = {"PATH": f"{self.folder}/bin", "HOME": str(self.folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        program = self.folder / "bin" / command[0]
        done = subprocess.run([program, *command[1:]], env=environment, cwd=self.folder, capture_output=True, text=True, timeout=60)
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    def install(self, release, *requirements, check=True):
        offline = ("--no-index", "--find-links", str(release), "--only-binary", ":all:")
        return self.run("python", "-m", "pip", "install", "--quiet", *offline, *requirements, check=check)


@pytest.fixture
def environment(tmp_path):
    """Returns a function that creates an environment for a version of Python."""
    return lambda python=sys.executable: Environment(tmp_path / "environment", python)
