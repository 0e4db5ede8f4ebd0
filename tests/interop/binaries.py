"""Finds the programs that the tests run. Does not import torch."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def binary():
    """Returns the path of the rallypoint binary: $RALLYPOINT_BIN, or else the newest build in the target directory."""
    named = os.environ.get("RALLYPOINT_BIN")
    if named:
        return str(pathlib.Path(named).resolve())
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [target / profile / "rallypoint" for profile in ("release", "debug")]
    if built := [path for path in built if path.exists()]:
        return str(max(built, key=lambda path: path.stat().st_mtime))
    raise FileNotFoundError("no rallypoint binary\nhint: build it with `cargo build --release`, or set RALLYPOINT_BIN")


def driver(name):
    """Returns the path of a program of `crates/drivers`, in $RALLYPOINT_DRIVERS or else in the directory of the binary."""
    directory = pathlib.Path(os.environ.get("RALLYPOINT_DRIVERS", pathlib.Path(binary()).parent))
    if not (directory / name).exists():
        hint = "build it with `cargo build --workspace --bins`, with `--release` if the binary is a release build"
        raise FileNotFoundError(f"no {name} in {directory}\nhint: {hint}")
    return str(directory / name)
