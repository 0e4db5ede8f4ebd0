"""Builds the wheel: maturin's, with the `rallypoint` command in it.

maturin packs the extension module; the command is a crate of its own, which it knows nothing of. So this backend builds
that first and puts it where maturin takes the files of a wheel's `scripts` from.

`RALLYPOINT_PROFILE` names the cargo profile for both; `release` unless it is set.
"""

import os
import pathlib
import shutil
import subprocess

import maturin

CRATE = pathlib.Path(__file__).resolve().parent.parent
PROFILE = os.environ.get("RALLYPOINT_PROFILE", "release")

get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_sdist = maturin.get_requires_for_build_sdist

DATA = CRATE / "data"


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """PEP 517's hook. pip calls it before anything is built, and maturin wants the folder to be there."""
    DATA.mkdir(exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_sdist(sdist_directory, config_settings=None):
    """PEP 517's hook."""
    DATA.mkdir(exist_ok=True)
    return maturin.build_sdist(sdist_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517's hook."""
    put_command(DATA / "scripts" / "rallypoint")
    os.environ.setdefault("MATURIN_PEP517_ARGS", f"--profile {PROFILE} --locked")
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def put_command(place):
    """Builds the command and copies it there."""
    cargo = shutil.which("cargo")
    if cargo is None:
        raise SystemExit("rallypoint: 'cargo' is not on the PATH; building the wheel needs a Rust toolchain (1.88 or newer)")
    # Of the whole workspace: the features of what is shared are then those that everything else was compiled with.
    build = [cargo, "build", "--locked", "--workspace", "--bin", "rallypoint", "--profile", PROFILE]
    subprocess.run(build, cwd=CRATE, check=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(built_command(cargo), place)


def built_command(cargo):
    """Where cargo has put it."""
    import json

    metadata = subprocess.run(
        [cargo, "metadata", "--no-deps", "--format-version", "1"], cwd=CRATE, check=True, capture_output=True
    )
    folder = {"dev": "debug"}.get(PROFILE, PROFILE)
    return pathlib.Path(json.loads(metadata.stdout)["target_directory"]) / folder / "rallypoint"
