"""The artifacts of `scripts/release` are complete and reproducible. The wheels install offline, without Rust, on every supported Python."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

STORE_SCRIPT = """
import rallypoint, sys, threading
server = rallypoint.TCPStore("localhost", 0, is_master=True)
client = rallypoint.TCPStore("localhost", server.port)
client.set("greeting", "hello")
assert server.get("greeting") == b"hello"
threads = [threading.Thread(target=lambda: [client.add("n", 1) for _ in range(50)]) for _ in range(4)]
[each.start() for each in threads], [each.join() for each in threads]
assert server.add("n", 0) == 200
print(rallypoint.__version__, getattr(sys, "_is_gil_enabled", lambda: True)())
"""


def test_the_checksums_cover_every_file(release):
    lines = (release / "SHA256SUMS").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert listed == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in release.iterdir() if path.name != "SHA256SUMS"
    }


def test_the_release_has_every_artifact(release, version):
    names = {path.name for path in release.iterdir()}
    platform = "manylinux2014_x86_64.manylinux_2_17_x86_64"
    assert names >= {
        f"rallypoint-{version}-cp310-abi3-{platform}.whl",
        f"rallypoint-{version}-cp314-cp314t-{platform}.whl",
        f"rallypoint-{version}-cp315-abi3.abi3t-{platform}.whl",
        f"rallypoint_cli-{version}-py3-none-{platform}.whl",
        f"rallypoint-{version}.tar.gz",
        f"rallypoint_cli-{version}.tar.gz",
        f"rallypoint-{version}-x86_64-unknown-linux-gnu",
        f"rallypoint-{version}.cdx.json",
        f"rallypoint-cli-{version}.cdx.json",
        "SHA256SUMS",
    }


def test_the_package_depends_on_the_command_of_its_version(release, version):
    for wheel in release.glob("rallypoint-*.whl"):
        archive = zipfile.ZipFile(wheel)
        metadata = archive.read(f"rallypoint-{version}.dist-info/METADATA").decode()
        assert f"Requires-Dist: rallypoint-cli=={version}" in metadata
        assert "Requires-Python: >=3.10" in metadata
    with tarfile.open(release / f"rallypoint-{version}.tar.gz") as sdist:
        assert f"Requires-Dist: rallypoint-cli=={version}" in sdist.extractfile(f"rallypoint-{version}/PKG-INFO").read().decode()


def test_a_machine_without_rust_installs_offline_and_runs_jobs_within_a_minute(release, version, environment):
    start = time.monotonic()
    new = environment()
    new.install(release, "rallypoint")
    assert new.run("rallypoint", "--version").stdout == f"rallypoint {version}\n"
    worker = new.directory / "worker.py"
    worker.write_text(
        f"#!{new.directory}/bin/python\n"
        "import os, rallypoint\n"
        "store = rallypoint.TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
        "store.set(f'rank{os.environ[\"RANK\"]}', 'here')\n"
        "store.wait(['rank0', 'rank1'])\n"
        "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
    )
    worker.chmod(0o755)
    for program in ["--no-python", str(worker)], [str(worker)]:
        output = new.run("rallypoint", "run", "--standalone", "--nproc-per-node", "2", *program).stdout
        assert sorted(re.findall(r"rank \d of 2", output)) == ["rank 0 of 2", "rank 1 of 2"]
    run_recovery_demo(new)
    assert new.run("python", "-c", STORE_SCRIPT).stdout == f"{version} True\n"
    assert time.monotonic() - start < 60


def run_recovery_demo(environment):
    """Runs the README's demo, and checks that its output shows the death of a worker and the restart of all workers."""
    # The demo is a shell script, and `sleep` is the only program that it starts besides `rallypoint`.
    (environment.directory / "bin/sleep").symlink_to(shutil.which("sleep"))
    options = ["--nproc-per-node", "3", "--max-restarts", "1", "--tee", "3", "--no-python"]
    done = environment.run("rallypoint", "run", *options, str(ROOT / "examples/recovery.sh"))
    assert "rank 1 kills itself" in done.stderr
    assert "failed (exitcode: -9) local_rank: 1" in done.stderr
    assert "restarting the workers: worker 1 of this node failed (signal 9); restarts left: 0" in done.stderr
    starts = re.findall(r"start (\d): rank (\d) of 3", done.stdout)
    assert sorted(starts) == [(start, rank) for start in "12" for rank in "012"]
    assert len(re.findall(r"^\[default\d\]:done$", done.stdout, re.MULTILINE)) == 3


def test_a_machine_with_rust_installs_the_source_distributions(release, version, environment, tmp_path):
    """Builds wheels from the source distributions with pip, installs them, and uses the command and the package.

    The build uses the maturin of the environment that runs the tests, because pip would download one. The build has no
    optimizations, to save time.
    """
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not on the PATH")
    sources = [release / f"rallypoint_cli-{version}.tar.gz", release / f"rallypoint-{version}.tar.gz"]
    wheels = tmp_path / "wheels"
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = os.environ | {"PATH": path, "CARGO_TARGET_DIR": str(tmp_path / "target"), "MATURIN_PEP517_ARGS": "--profile dev"}
    build = [sys.executable, "-m", "pip", "wheel", "--no-index", "--no-build-isolation", "--no-deps", "--wheel-dir", wheels, *sources]
    built = subprocess.run(build, env=settings, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    new = environment()
    new.install(wheels, "rallypoint")
    assert new.run("rallypoint", "--version").stdout == f"rallypoint {version}\n"
    assert new.run("python", "-c", STORE_SCRIPT).stdout == f"{version} True\n"


def test_the_command_installs_alone(release, version, environment):
    new = environment()
    new.install(release, "rallypoint-cli")
    assert new.run("rallypoint", "--version").stdout == f"rallypoint {version}\n"
    assert "No module named 'rallypoint'" in new.run("python", "-c", "import rallypoint", check=False).stderr


def test_the_single_file_is_the_command(release, version):
    command = release / f"rallypoint-{version}-{os.uname().machine}-unknown-linux-gnu"
    assert command.stat().st_size <= 15 << 20
    subprocess.run(["sha256sum", "--check", "--ignore-missing", "--quiet", "SHA256SUMS"], cwd=release, check=True)
    assert subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout == f"rallypoint {version}\n"


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13", "3.14", "3.15", "3.14t", "3.15t"])
def test_the_package_works_on_every_supported_python(release, version, environment, python):
    new = environment(python)
    new.install(release, "rallypoint")
    # Importing the package on a free-threaded Python doesn't enable the GIL.
    assert new.run("python", "-c", STORE_SCRIPT).stdout == f"{version} {not python.endswith('t')}\n"
    assert new.run("python", "-m", "rallypoint", "--version").stdout == f"rallypoint {version}\n"


def test_a_python_without_an_extension_module_gets_the_command_and_an_error_that_names_the_python(release, version, environment, tmp_path):
    new = environment("3.13t")
    new.install(release, "rallypoint-cli")
    assert new.run("rallypoint", "--version").stdout == f"rallypoint {version}\n"
    assert new.install(release, "rallypoint", check=False).returncode != 0
    [wheel] = release.glob(f"rallypoint-{version}-cp310-abi3-*_{os.uname().machine}.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "unpacked")
    script = f"import sys; sys.path.insert(0, {str(tmp_path / 'unpacked')!r}); import rallypoint; rallypoint.TCPStore"
    errors = new.run("python", "-c", script, check=False).stderr
    assert "ImportError: rallypoint has no extension module for free-threaded cpython 3.13" in errors


def test_the_sbom_lists_linked_crates_and_no_development_crates(release, version):
    for name, part in ("rallypoint", "pyo3"), ("rallypoint-cli", "clap"):
        bom = json.loads((release / f"{name}-{version}.cdx.json").read_text())
        assert bom["bomFormat"] == "CycloneDX"
        crates = {each["name"]: each for each in bom["components"]}
        assert {part, "rallypoint-core", "rallypoint-store", "mio"} <= crates.keys()
        assert "proptest" not in crates and "rallypoint-testkit" not in crates
        assert crates["mio"]["purl"].startswith("pkg:cargo/mio@") and crates["mio"]["licenses"]
        assert str(ROOT) not in json.dumps(bom)


def test_a_build_in_another_directory_gives_equal_files(release, tmp_path_factory):
    """Builds a clone of the repository in another directory and with another target directory."""
    directory = tmp_path_factory.mktemp("another")
    subprocess.run(["git", "clone", "--quiet", ROOT, directory / "clone"], check=True)
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True).stdout:
        pytest.skip("the working tree has uncommitted changes, which a clone doesn't have")
    settings = os.environ | {"CARGO_TARGET_DIR": str(directory / "target")}
    built = subprocess.run([directory / "clone/scripts/release", directory / "out"], env=settings, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    assert (directory / "out/SHA256SUMS").read_text() == (release / "SHA256SUMS").read_text()
