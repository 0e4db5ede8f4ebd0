"""Build backend (PEP 517): maturin, plus the `rallypoint` command and a source distribution of the whole workspace.

Maturin packs the extension module. The command is a crate of its own, so this backend builds the command first and puts
it into the folder from which maturin takes a wheel's `scripts`. Maturin's source distribution omits the crates that
only the command needs, so this backend archives the workspace instead.

The environment variable `RALLYPOINT_PROFILE` names the cargo profile for both binaries. The default is `release`.
"""

import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

import maturin

ROOT = pathlib.Path(__file__).resolve().parents[3]
DATA = ROOT / "crates" / "python" / "data"
PROFILE = os.environ.get("RALLYPOINT_PROFILE", "release")
# The files and folders of a source distribution.
SOURCES = ["Cargo.lock", "Cargo.toml", "LICENSE", "README.md", "crates", "pyproject.toml"]
# Build products inside those folders, which are left out.
PRODUCTS = ("crates/python/data", "/target", "/__pycache__")

get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_sdist = maturin.get_requires_for_build_sdist


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """Writes the metadata. Creates the data folder, which maturin requires even before anything is built."""
    DATA.mkdir(exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_sdist(sdist_directory, config_settings=None):
    """Archives the sources, with the metadata as `PKG-INFO`."""
    with tempfile.TemporaryDirectory() as folder:
        info = prepare_metadata_for_build_wheel(folder, config_settings)
        name = info.removesuffix(".dist-info")
        archive = pathlib.Path(sdist_directory, f"{name}.tar.gz")
        with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as sdist:
            sdist.add(pathlib.Path(folder, info, "METADATA"), f"{name}/PKG-INFO")
            for source in SOURCES:
                sdist.add(ROOT / source, f"{name}/{source}", filter=_without_products)
    return archive.name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds the command and the extension module, and packs both."""
    command = DATA / "scripts" / "rallypoint"
    command.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(_build_command(), command)
    os.environ.setdefault("MATURIN_PEP517_ARGS", f"--profile {PROFILE} --locked")
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def _without_products(member):
    return None if member.name.endswith(PRODUCTS) else member


def _build_command():
    """Builds the command and returns its path."""
    cargo = shutil.which("cargo")
    if cargo is None:
        raise SystemExit("rallypoint: 'cargo' is not on the PATH\nhint: install a Rust toolchain, 1.88 or newer")
    # With `--workspace`, shared dependencies get the same features as in a build of the whole workspace, so that they
    # are compiled only once.
    build = [cargo, "build", "--locked", "--workspace", "--bin", "rallypoint", "--profile", PROFILE]
    subprocess.run(build, cwd=ROOT, check=True)
    metadata = subprocess.run(
        [cargo, "metadata", "--no-deps", "--format-version", "1"], cwd=ROOT, check=True, capture_output=True
    )
    folder = {"dev": "debug"}.get(PROFILE, PROFILE)
    return pathlib.Path(json.loads(metadata.stdout)["target_directory"], folder, "rallypoint")
