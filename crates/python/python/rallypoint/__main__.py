"""`python -m rallypoint`: the `rallypoint` command, which the distribution `rallypoint-cli` installs."""

import os
import shutil
import sys
import sysconfig


def command() -> "str | None":
    """Where the command is: with this environment's scripts, or the user's."""
    places = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    places.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    return shutil.which("rallypoint", path=os.pathsep.join(places))


def main() -> None:
    """Becomes the command."""
    found = command()
    if found is None:
        sys.exit("rallypoint: this Python has no 'rallypoint' command\nhint: pip install rallypoint-cli")
    if sys.argv[1:2] == ["run"] and sys.executable and not os.environ.get("PYTHON_EXEC"):
        # The workers run in the Python that was asked for, whatever environment is activated.
        os.environ["PYTHON_EXEC"] = sys.executable
    os.execv(found, [found, *sys.argv[1:]])


if __name__ == "__main__":
    main()
