"""`python -m rallypoint`: runs the `rallypoint` command, which the distribution `rallypoint-cli` installs."""

import os
import shutil
import sys
import sysconfig


def find_command() -> "str | None":
    """Returns the path of the command, or `None` if it is not installed for this Python.

    Searches the scripts directory of this environment, the directory of the Python executable, and the user's scripts directory.
    """
    directories = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    directories.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    return shutil.which("rallypoint", path=os.pathsep.join(directories))


def main() -> None:
    """Replaces this process with the command."""
    command = find_command()
    if command is None:
        sys.exit("rallypoint: this Python has no 'rallypoint' command\nhint: pip install rallypoint-cli, or in a clone: pip install ./crates/rallypoint")
    if sys.argv[1:2] == ["run"] and sys.executable and not os.environ.get("PYTHON_EXEC"):
        # Run the workers with this Python, even if another environment is activated.
        os.environ["PYTHON_EXEC"] = sys.executable
    os.execv(command, [command, *sys.argv[1:]])


if __name__ == "__main__":
    main()
