"""The package itself: what is in the wheel, what importing costs, what the stubs and the pages say."""

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
    """The folder with the wheels that `scripts/python-venv` built and installed."""
    named = os.environ.get("RALLYPOINT_WHEELS")
    if not named:
        pytest.skip("RALLYPOINT_WHEELS does not name a folder; scripts/test sets it")
    return pathlib.Path(named).resolve()


@pytest.fixture(scope="session")
def alone(wheels, tmp_path_factory):
    """An environment with the two wheels and nothing else, and a PATH without Rust."""
    folder = tmp_path_factory.mktemp("alone")
    venv.create(folder, with_pip=True)
    environment = {"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(folder)}
    assert shutil.which("cargo", path=environment["PATH"]) is None

    def run(*command, **variables):
        done = subprocess.run(command, env=environment | variables, cwd=folder, capture_output=True, text=True, timeout=100)
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


def test_it_installs_where_there_is_neither_rust_nor_torch(alone):
    version = rallypoint.__version__
    assert alone("rallypoint", "--version").strip() == f"rallypoint {version}"
    assert alone("python", "-m", "rallypoint", "--version").strip() == f"rallypoint {version}"
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
    assert alone("python", "-c", script).splitlines() == [f"b'hello' {version}", "queue q is empty"]


def test_workers_run_in_the_python_that_the_command_belongs_to(alone, tmp_path):
    script = tmp_path / "which.py"
    script.write_text("import sys; print(sys.prefix)")
    prefix = alone("python", "-c", "import sys; print(sys.prefix)").strip()
    elsewhere = {"PATH": "/usr/bin:/bin"}
    for command in (f"{prefix}/bin/rallypoint",), (f"{prefix}/bin/python", "-m", "rallypoint"):
        assert alone(*command, "run", str(script), **elsewhere).strip() == prefix, command
    # `python -m` names the Python, whichever is activated.
    other = {**elsewhere, "VIRTUAL_ENV": sys.prefix}
    assert alone(f"{prefix}/bin/rallypoint", "run", str(script), **other).strip() == sys.prefix
    assert alone(f"{prefix}/bin/python", "-m", "rallypoint", "run", str(script), **other).strip() == prefix


def test_help_needs_no_torch(alone):
    told = alone("python", "-c", "import rallypoint; help(rallypoint); print(hasattr(rallypoint, 'torch'), 'torch' in dir(rallypoint))")
    assert "Torch's distributed stores and elastic rendezvous" in told and "class TCPStore" in told
    assert told.endswith("False False\n")


def link_dependencies(target):
    """A target folder with the compiled dependencies of another one, and without our own crates."""

    def ours(_, names):
        return [name for name in names if "rallypoint" in name]

    linked = target / "sdist"
    shutil.rmtree(linked, ignore_errors=True)
    for folder in (".fingerprint", "build", "deps"):
        shutil.copytree(target / "debug" / folder, linked / "debug" / folder, copy_function=os.link, ignore=ours)
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


def test_the_command_serves_what_the_package_uses(alone):
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
    assert alone("python", "-c", script) == "5\n"


def importing(code):
    """Seconds that a Python takes which runs this: the best of some."""
    measure = f"import time; start = time.perf_counter(); {code}; print(time.perf_counter() - start)"
    taken = [float(subprocess.run([sys.executable, "-I", "-c", measure], capture_output=True, text=True, check=True).stdout) for _ in range(7)]
    return min(taken), statistics.median(taken)


def test_importing_takes_no_time_and_loads_nothing_else():
    best, _ = importing("import rallypoint; rallypoint.TCPStore")
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


def test_importing_starts_no_thread_and_touches_no_signal():
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


def test_the_stubs_say_what_the_module_has(tmp_path):
    pytest.importorskip("mypy.stubtest")
    # The native half. The other is Python, and says itself what it has.
    command = [sys.executable, "-m", "mypy.stubtest", "--ignore-disjoint-bases", "rallypoint._rallypoint"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    stub = (pathlib.Path(rallypoint.__file__).parent / "__init__.pyi").read_text()
    offered = next(node.value for node in ast.parse(stub).body if isinstance(node, ast.Assign))
    assert ast.literal_eval(offered) == rallypoint.__all__


# What a user writes who has everything checked.
TYPED = """
from datetime import timedelta

import rallypoint
from rallypoint import FileStore, HashStore, PrefixStore, Store, TCPStore
from rallypoint.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from rallypoint.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend, create_backend
from rallypoint.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout
from rallypoint.elastic.torchrun import create_handler
from rallypoint.elastic.utils.distributed import create_c10d_store, get_socket_with_port
from rallypoint.elastic.utils.store import barrier, get_all, store_timeout, synchronize
from rallypoint.torch import TorchStore, as_torch_store


class Mine(Store):
    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self.held[key] = value if isinstance(value, bytes) else value.encode()

    def get(self, key: str) -> bytes:
        return self.held[key]


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


def test_a_program_that_is_strictly_typed_passes(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "typed.py").write_text(TYPED)
    # Torch's own types are large, and not what this is about.
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n[mypy-torch.*]\nfollow_imports = skip\nfollow_imports_for_stubs = true\n")
    command = [sys.executable, "-m", "mypy", "typed.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_stubs_and_help_tell_the_same():
    stub = ast.parse((pathlib.Path(rallypoint.__file__).parent / "_rallypoint.pyi").read_text())
    different = []
    for node in ast.walk(stub):
        if not isinstance(node, ast.ClassDef) or not hasattr(rallypoint, node.name):
            continue
        found = getattr(rallypoint, node.name)
        pairs = [(node.name, found, node)]
        members = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name != "__init__"]
        pairs += [(f"{node.name}.{each.name}", getattr(found, each.name), each) for each in members]
        for name, thing, said in pairs:
            told, written = (" ".join((text or "").split()) for text in (inspect.getdoc(thing), ast.get_docstring(said)))
            if told != written or not told:
                different.append(f"{name}: help says {told!r}, the stub {written!r}")
    assert different == []


def test_help_shows_torchs_arguments():
    signature = inspect.signature(rallypoint.TCPStore)
    assert list(signature.parameters) == [
        *("host_name", "port", "world_size", "is_master", "timeout", "wait_for_workers", "multi_tenant", "master_listen_fd", "use_libuv")
    ]
    assert str(inspect.signature(rallypoint.FileStore)) == "(file_name, world_size=-1)"
    assert str(inspect.signature(rallypoint.PrefixStore)) == "(prefix, store)"
    assert str(inspect.signature(rallypoint.Store.queue_pop)) == "(self, /, key, block=True)"


def test_everything_offered_is_there_and_torch_has_it_too():
    import torch.distributed as dist

    for name in rallypoint.__all__:
        assert getattr(rallypoint, name) is not None and name in dir(rallypoint)
    stores = ["FileStore", "HashStore", "PrefixStore", "Store", "TCPStore"]
    assert [name for name in stores if not hasattr(dist, name)] == []
    for name in stores:
        theirs, ours = (
            {each for each in dir(getattr(module, name)) if not each.startswith("_")} for module in (dist, rallypoint)
        )
        assert theirs <= ours | {"boxed", "unbox"}, theirs - ours
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        rallypoint.Nothing


EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["docs/python.md", "crates/python/README.md"])
def test_the_examples_of_the_pages_run(page, tmp_path):
    examples = EXAMPLE.findall((ROOT / page).read_text())
    assert examples
    for number, example in enumerate(examples):
        script = tmp_path / f"{number}.py"
        script.write_text(example)
        done = subprocess.run([sys.executable, "-W", "ignore", script], cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, f"{example}\n{done.stderr}"
        # What a comment behind a print says is what it prints.
        expected = re.findall(r"^print\(.*\)  # (.*)$", example, re.MULTILINE)
        assert [line for line in done.stdout.splitlines() if line in expected] == expected, done.stdout
