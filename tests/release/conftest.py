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
    directory = os.environ.get("RALLYPOINT_RELEASE")
    if not directory:
        pytest.skip("RALLYPOINT_RELEASE is not set; `scripts/test release` sets it")
    return pathlib.Path(directory).resolve()


@pytest.fixture(scope="session")
def version():
    return (ROOT / "Cargo.toml").read_text().partition('\nversion = "')[2].partition('"')[0]


class Environment:
    """A Python environment. The PATH of its commands has only the environment's programs: no Rust, no compiler, no shell."""

    def __init__(self, directory, python):
        self.directory = directory
        subprocess.run([python, "-m", "venv", directory], check=True)

    def run(self, *command, check=True):
        variables = {"PATH": f"{self.directory}/bin", "HOME": str(self.directory), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        program = self.directory / "bin" / command[0]
        done = subprocess.run([program, *command[1:]], env=variables, cwd=self.directory, capture_output=True, text=True, timeout=60)
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    def install(self, release, *requirements, check=True):
        return self.run("python", "-m", "pip", "install", "--no-index", "--find-links", str(release), *requirements, check=check)


def find_python(version):
    """Returns the path of a Python of this version, which uv downloads if the machine doesn't have it."""
    request = version if version.endswith("t") else f"{version}+gil"
    uv = [sys.executable, "-m", "uv", "run", "--quiet", "--no-project", "--python", request]
    found = subprocess.run([*uv, "python", "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"uv finds no Python {version} and can't download it")
    return found.stdout.strip()


@pytest.fixture
def environment(tmp_path):
    """Returns a function that creates an environment for a version of Python, or for the one that runs the tests."""
    return lambda version=None: Environment(tmp_path / "environment", find_python(version) if version else sys.executable)
