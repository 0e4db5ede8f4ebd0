"""The Python package: contents of the wheel, import time, stubs, docstrings and documentation."""

import ast
import inspect
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import venv
import zipfile

import pytest
from families import rallypoint

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def wheels():
    """The directory with the wheels that `scripts/python-venv` built and installed."""
    named = os.environ.get("RALLYPOINT_WHEELS")
    if not named:
        pytest.skip("RALLYPOINT_WHEELS is not set; scripts/test sets it")
    return pathlib.Path(named).resolve()


@pytest.fixture(scope="session")
def run_isolated(wheels, tmp_path_factory):
    """A function that runs a command in an environment with only the two wheels and without Rust, and returns its output."""
    directory = tmp_path_factory.mktemp("alone")
    venv.create(directory, with_pip=True)
    environment = {"PATH": f"{directory}/bin:/usr/bin:/bin", "HOME": str(directory)}
    assert shutil.which("cargo", path=environment["PATH"]) is None

    def run(*command, **variables):
        done = subprocess.run(command, env=environment | variables, cwd=directory, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    offline = ("--no-index", "--find-links", str(wheels), "--disable-pip-version-check", "--quiet")
    run("python", "-m", "pip", "install", *offline, "rallypoint", "rallypoint-cli")
    return run


def test_one_wheel_has_the_stores_for_all_pythons_and_the_other_has_the_command(wheels):
    [package] = wheels.glob("rallypoint-*.whl")
    assert re.fullmatch(r"rallypoint-[\d.]+-cp310-abi3-\w+\.whl", package.name)
    names = zipfile.ZipFile(package).namelist()
    for name in ["__init__.py", "__init__.pyi", "_rallypoint.pyi", "py.typed", "_rallypoint.abi3.so"]:
        assert f"rallypoint/{name}" in names
    metadata = next(zipfile.ZipFile(package).read(name).decode() for name in names if name.endswith("/METADATA"))
    assert "Requires-Python: >=3.10" in metadata
    [command] = wheels.glob("rallypoint_cli-*.whl")
    assert re.fullmatch(r"rallypoint_cli-[\d.]+-py3-none-\w+\.whl", command.name)
    names = zipfile.ZipFile(command).namelist()
    assert any(re.fullmatch(r"rallypoint_cli-[\d.]+\.data/scripts/rallypoint", name) for name in names)


def test_the_wheel_works_without_rust_and_torch(run_isolated):
    version = rallypoint.__version__
    assert run_isolated("rallypoint", "--version").strip() == f"rallypoint {version}"
    assert run_isolated("python", "-m", "rallypoint", "--version").strip() == f"rallypoint {version}"
    script = """
import rallypoint
server = rallypoint.TCPStore("localhost", 0, is_master=True)
client = rallypoint.TCPStore("localhost", server.port)
client.set("greeting", "hello")
print(server.get("greeting"), rallypoint.__version__)
try:
    client.queue_pop("q", block=False)
except rallypoint.QueueEmptyError as error:
    print(error)
"""
    assert run_isolated("python", "-c", script).splitlines() == [f"b'hello' {version}", "queue q is empty"]


def test_workers_run_in_the_python_that_the_command_belongs_to(run_isolated, tmp_path):
    script = tmp_path / "which.py"
    script.write_text("import sys; print(sys.prefix)")
    prefix = run_isolated("python", "-c", "import sys; print(sys.prefix)").strip()
    elsewhere = {"PATH": "/usr/bin:/bin"}
    for command in (f"{prefix}/bin/rallypoint",), (f"{prefix}/bin/python", "-m", "rallypoint"):
        assert run_isolated(*command, "run", str(script), **elsewhere).strip() == prefix, command
    # If another environment is activated, `rallypoint` uses that environment's Python, but `python -m rallypoint` its own.
    other = {**elsewhere, "VIRTUAL_ENV": sys.prefix}
    assert run_isolated(f"{prefix}/bin/rallypoint", "run", str(script), **other).strip() == sys.prefix
    assert run_isolated(f"{prefix}/bin/python", "-m", "rallypoint", "run", str(script), **other).strip() == prefix


def test_help_needs_no_torch(run_isolated):
    script = "import rallypoint; help(rallypoint); print(hasattr(rallypoint, 'torch'), 'torch' in dir(rallypoint))"
    help_text = run_isolated("python", "-c", script)
    assert "Torch's distributed stores and elastic rendezvous" in help_text and "class TCPStore" in help_text
    assert help_text.endswith("False False\n")


def link_dependencies(target):
    """Creates a target directory with hard links to the compiled dependencies in `target`, and without our own crates."""

    def ours(_, names):
        return [name for name in names if "rallypoint" in name]

    linked = target / "sdist"
    shutil.rmtree(linked, ignore_errors=True)
    for directory in (".fingerprint", "build", "deps"):
        shutil.copytree(target / "debug" / directory, linked / "debug" / directory, copy_function=os.link, ignore=ours)
    return linked


@pytest.mark.timeout(900)
def test_the_source_distributions_install_without_the_repository(wheels, tmp_path):
    for project in ROOT, ROOT / "crates/rallypoint":
        build = [sys.executable, "-m", "uv", "build", "--quiet", "--sdist", "--out-dir", tmp_path, project]
        subprocess.run(build, check=True, capture_output=True, timeout=100)
    sdists = list(tmp_path.glob("rallypoint*.tar.gz"))
    assert len(sdists) == 2
    venv.create(tmp_path / "venv", with_pip=True)
    target = link_dependencies(wheels.parent)
    settings = {"CARGO_TARGET_DIR": str(target), "CARGO_INCREMENTAL": "0", "CARGO_PROFILE_DEV_DEBUG": "0", "MATURIN_PEP517_ARGS": "--profile dev"}
    install = [tmp_path / "venv/bin/pip", "install", "-v", "--disable-pip-version-check", *sdists]
    try:
        done = subprocess.run(install, env=os.environ | settings, cwd=tmp_path, capture_output=True, text=True)
    finally:
        shutil.rmtree(target)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{ROOT}/crates" not in done.stdout

    def run(*command):
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=100).stdout

    version = rallypoint.__version__
    assert run(tmp_path / "venv/bin/rallypoint", "--version").strip() == f"rallypoint {version}"
    script = "import rallypoint; store = rallypoint.HashStore(); store.set('k', 'v'); print(store.get('k'), rallypoint.__version__)"
    assert run(tmp_path / "venv/bin/python", "-c", script).strip() == f"b'v' {version}"


def test_the_command_runs_a_server_for_the_package(run_isolated):
    script = """
import rallypoint, subprocess
server = subprocess.Popen(["rallypoint", "serve", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
try:
    port = int(server.stdout.readline().rpartition(":")[2])
    print(rallypoint.TCPStore("127.0.0.1", port).add("n", 5))
finally:
    server.terminate()
    server.wait()
"""
    assert run_isolated("python", "-c", script) == "5\n"


def import_seconds(code):
    """Returns the best and the median time of running `code` in a new Python, in seconds, over 7 runs."""
    measure = f"import time; start = time.perf_counter(); {code}; print(time.perf_counter() - start)"
    command = [sys.executable, "-I", "-c", measure]
    times = [float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(7)]
    return min(times), statistics.median(times)


def test_importing_takes_at_most_50_ms_and_loads_no_module_of_another_package():
    best, _ = import_seconds("import rallypoint; rallypoint.TCPStore")
    assert best <= 0.050
    script = """
import sys
before = set(sys.modules)
import rallypoint
first = set(sys.modules) - before
rallypoint.TCPStore, rallypoint.DistStoreError
print(sorted(first), sorted(set(sys.modules) - before - first))
"""
    loaded = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert loaded == "['rallypoint'] ['rallypoint._exceptions', 'rallypoint._rallypoint']"


def test_importing_starts_no_thread_and_changes_no_signal_handler():
    script = """
import signal, threading
handlers = {each: signal.getsignal(each) for each in signal.valid_signals()}
import rallypoint
rallypoint.TCPStore, rallypoint.Store, rallypoint.DistError
assert {each: signal.getsignal(each) for each in signal.valid_signals()} == handlers
import os
print(len(os.listdir("/proc/self/task")), threading.active_count())
"""
    assert subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True).stdout == "1 1\n"


def test_the_stubs_match_the_extension_module(tmp_path):
    pytest.importorskip("mypy.stubtest")
    # stubtest checks only the extension module. The other modules are annotated Python. `__init__.pyi` is checked below.
    command = [sys.executable, "-m", "mypy.stubtest", "--ignore-disjoint-bases", "rallypoint._rallypoint"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    stub = (pathlib.Path(rallypoint.__file__).parent / "__init__.pyi").read_text()
    public_names = next(node.value for node in ast.parse(stub).body if isinstance(node, ast.Assign))
    assert ast.literal_eval(public_names) == rallypoint.__all__


# A user's program, which `mypy --strict` checks.
TYPED = """
from datetime import timedelta

import rallypoint
from rallypoint import FileStore, HashStore, PrefixStore, Store, TCPStore
from rallypoint.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from rallypoint.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend, create_backend
from rallypoint.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout
from rallypoint.elastic.rendezvous.native_rendezvous import NativeRendezvousHandler
from rallypoint.elastic.torchrun import create_c10d_handler, create_handler
from rallypoint.elastic.utils.distributed import create_c10d_store, get_socket_with_port
from rallypoint.elastic.utils.store import barrier, get_all, store_timeout, synchronize
from rallypoint.torch import TorchStore, as_torch_store


class Mine(Store):
    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self.values[key] = value if isinstance(value, bytes) else value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]


store = TCPStore("localhost", 0, is_master=True, timeout=timedelta(seconds=3))
part: Store = PrefixStore("part", Mine())
value: bytes = store.get("key")
clone: TCPStore = store.clone()
adapter: TorchStore = TorchStore(store)
as_torch_store(store).set("key", "value")
backend, below = create_backend(RendezvousParameters("c10d", "localhost:0", "job", 1, 1))
info = rendezvous_handler_registry.create_handler(RendezvousParameters("c10d", "localhost:0", "job", 1, 1)).next_rendezvous()
rank: int = info.rank
with store_timeout(store, 3.0), get_socket_with_port() as held:
    all_of_them: list[bytes] = get_all(store, 0, "prefix", held.fileno())
print(rallypoint.elastic.rendezvous, rallypoint.__version__, RendezvousTimeout().join)
"""


def test_a_strictly_typed_program_passes_mypy(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "typed.py").write_text(TYPED)
    # mypy skips torch's own types, which are large.
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n[mypy-torch.*]\nfollow_imports = skip\nfollow_imports_for_stubs = true\n")
    command = [sys.executable, "-m", "mypy", "typed.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_docstrings_are_equal_in_stubs_and_help():
    stub = ast.parse((pathlib.Path(rallypoint.__file__).parent / "_rallypoint.pyi").read_text())
    different = []
    for node in ast.walk(stub):
        if not isinstance(node, ast.ClassDef) or not hasattr(rallypoint, node.name):
            continue
        found = getattr(rallypoint, node.name)
        pairs = [(node.name, found, node)]
        members = [method for method in node.body if isinstance(method, ast.FunctionDef) and method.name != "__init__"]
        pairs += [(f"{node.name}.{method.name}", getattr(found, method.name), method) for method in members]
        for name, member, definition in pairs:
            docstrings = (inspect.getdoc(member), ast.get_docstring(definition))
            shown, stubbed = (" ".join((text or "").split()) for text in docstrings)
            if shown != stubbed or not shown:
                different.append(f"{name}: help says {shown!r}, the stub {stubbed!r}")
    assert different == []


def test_help_shows_torchs_arguments():
    signature = inspect.signature(rallypoint.TCPStore)
    assert list(signature.parameters) == [
        *("host_name", "port", "world_size", "is_master", "timeout", "wait_for_workers", "multi_tenant", "master_listen_fd", "use_libuv")
    ]
    assert str(inspect.signature(rallypoint.FileStore)) == "(file_name, world_size=-1)"
    assert str(inspect.signature(rallypoint.PrefixStore)) == "(prefix, store)"
    assert str(inspect.signature(rallypoint.Store.queue_pop)) == "(self, /, key, block=True)"


def test_every_public_name_exists_and_our_stores_have_all_methods_of_torchs():
    import torch.distributed as dist

    for name in rallypoint.__all__:
        assert getattr(rallypoint, name) is not None and name in dir(rallypoint)
    stores = ["FileStore", "HashStore", "PrefixStore", "Store", "TCPStore"]
    assert [name for name in stores if not hasattr(dist, name)] == []
    for name in stores:
        theirs, ours = (
            {method for method in dir(getattr(module, name)) if not method.startswith("_")} for module in (dist, rallypoint)
        )
        assert theirs <= ours | {"boxed", "unbox"}, theirs - ours
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        rallypoint.Nothing
