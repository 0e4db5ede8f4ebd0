"""`python -m rallypoint`: the `rallypoint` command that came with the package."""

import os
import shutil
import sys
import sysconfig


def find_command() -> "str | None":
    """Where the command is: with this environment's scripts, or the user's."""
    folders = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    folders.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    return shutil.which("rallypoint", path=os.pathsep.join(folders))


def main() -> None:
    """Becomes the command."""
    command = find_command()
    if command is None:
        sys.exit("rallypoint: the command is not with this Python's scripts; install the package again")
    if sys.argv[1:2] == ["run"] and sys.executable and not os.environ.get("PYTHON_EXEC"):
        # The workers run in the Python that was asked for, whatever environment is activated.
        os.environ["PYTHON_EXEC"] = sys.executable
    os.execv(command, [command, *sys.argv[1:]])


if __name__ == "__main__":
    main()
