"""Where the programs are that the tests run. It needs no torch."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def binary():
    """The rallypoint binary: $RALLYPOINT_BIN, else the newest build in the target folder."""
    named = os.environ.get("RALLYPOINT_BIN")
    if named:
        return str(pathlib.Path(named).resolve())
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [target / profile / "rallypoint" for profile in ("release", "debug")]
    if built := [path for path in built if path.exists()]:
        return str(max(built, key=lambda path: path.stat().st_mtime))
    raise FileNotFoundError("no rallypoint binary: build it with `cargo build --release`, or set RALLYPOINT_BIN")


def driver(name):
    """One of the programs of `crates/drivers`: in $RALLYPOINT_DRIVERS, else beside the binary."""
    folder = pathlib.Path(os.environ.get("RALLYPOINT_DRIVERS", pathlib.Path(binary()).parent))
    if not (folder / name).exists():
        raise FileNotFoundError(f"no {name} in {folder}: build it with `cargo build --workspace --bins`, as the binary was built")
    return str(folder / name)
