"""Where the state of a rendezvous lies: the `c10d` backend over each store, and how its store is made. Played on torch's and on ours."""

import base64
import pickle
import tempfile
from datetime import timedelta

import pytest
from both import BOTH, OURS, TORCH, run_id


@pytest.fixture(params=BOTH, ids=repr)
def lib(request):
    return request.param


def state(number):
    """A state that is one: our server takes nothing else under the key of a state."""
    made = TORCH.dynamic._RendezvousState()
    made.round = number
    return pickle.dumps(made)


STORES = {
    "hash": lambda lib, path: lib.dist.HashStore(),
    "file": lambda lib, path: lib.dist.FileStore(path),
    "tcp": lambda lib, path: lib.server(),
    "prefix": lambda lib, path: lib.dist.PrefixStore("part", lib.dist.HashStore()),
}


@pytest.fixture(params=STORES)
def store(request, lib, tmp_path):
    return STORES[request.param](lib, str(tmp_path / "store"))


@pytest.fixture
def backend(lib, store):
    return lib.c10d.C10dRendezvousBackend(store, "job")


def test_it_says_its_name_and_wants_a_run_id(lib, store):
    assert lib.c10d.C10dRendezvousBackend(store, "job").name == "c10d"
    for nothing in ("", None):
        with pytest.raises(ValueError) as error:
            lib.c10d.C10dRendezvousBackend(store, nothing)
        assert str(error.value) == "The run id must be a non-empty string."


def test_there_is_no_state_at_first(backend):
    assert backend.get_state() is None


def test_the_first_state_is_set_without_a_token(backend):
    held, token, has_set = backend.set_state(state(1))
    assert (held, has_set) == (state(1), True)
    assert token is not None
    assert backend.get_state() == (state(1), token)


def test_a_state_is_replaced_by_its_token(backend):
    _, token, _ = backend.set_state(state(1))
    held, second, has_set = backend.set_state(state(2), token)
    assert (held, has_set) == (state(2), True)
    assert second != token
    assert backend.get_state() == (state(2), second)


def test_a_state_that_was_replaced_meanwhile_is_left_alone(backend):
    _, old, _ = backend.set_state(state(1))
    _, new, _ = backend.set_state(state(2), old)
    assert backend.set_state(state(3), old) == (state(2), new, False)
    assert backend.get_state() == (state(2), new)


def test_without_a_token_nothing_is_replaced(backend):
    _, token, _ = backend.set_state(state(1))
    assert backend.set_state(state(2), None) == (state(1), token, False)
    assert backend.get_state() == (state(1), token)


@pytest.mark.parametrize("token", ["none of ours", 7, object()])
def test_a_token_of_another_kind_replaces_nothing(backend, token):
    assert backend.set_state(state(1), token) is None
    assert backend.get_state() is None
    backend.set_state(state(1))
    held, _, has_set = backend.set_state(state(2), token)
    assert (held, has_set) == (state(1), False)
    assert backend.get_state()[0] == state(1)


def test_two_backends_on_one_store_see_one_state_and_two_jobs_see_two(lib, store):
    first, second = (lib.c10d.C10dRendezvousBackend(store, "job") for _ in range(2))
    other = lib.c10d.C10dRendezvousBackend(store, "other job")
    _, token, _ = first.set_state(state(1))
    assert second.get_state() == (state(1), token)
    assert other.get_state() is None


def test_the_state_lies_where_torch_has_it(lib, store):
    lib.c10d.C10dRendezvousBackend(store, "job").set_state(state(1))
    assert store.get("torch.rendezvous.job") == base64.b64encode(state(1))


def test_what_is_no_base64_is_a_corrupt_state(lib):
    store = lib.dist.HashStore()
    backend = lib.c10d.C10dRendezvousBackend(store, "job")
    store.set("torch.rendezvous.job", "non_base64")
    with pytest.raises(lib.api.RendezvousStateError) as error:
        backend.get_state()
    assert str(error.value) == "The state object is corrupt. See inner exception for details."
    assert error.value.__cause__ is not None


def test_what_is_no_state_is_refused_by_our_server_and_the_error_says_what_it_is():
    backend = OURS.c10d.C10dRendezvousBackend(OURS.server(), "job")
    with pytest.raises(OURS.api.RendezvousStateError) as error:
        backend.set_state(b"x")
    assert "first byte 0x78 does not begin a pickle" in str(error.value.__cause__)
    # Nothing was written, and it goes on.
    assert backend.get_state() is None
    assert backend.set_state(state(1))[2]


def test_a_store_that_fails_is_a_connection_error_with_its_own_error_inside(lib):
    class Failing(lib.dist.Store):
        fails = False

        def compare_set(self, key, expected, desired):
            return desired if isinstance(desired, bytes) else desired.encode()

        def get(self, key):
            raise ValueError("gone")

        def check(self, keys):
            raise ValueError("gone")

        def wait(self, keys, timeout=None):
            raise ValueError("gone")

    backend = lib.c10d.C10dRendezvousBackend(Failing(), "job")
    with pytest.raises(lib.api.RendezvousConnectionError) as error:
        backend.get_state()
    assert str(error.value) == "The connection to the C10d store has failed. See inner exception for details."
    assert str(error.value.__cause__) == "gone"
    assert type(error.value.__cause__) is ValueError


def test_ours_over_a_store_of_torchs_and_torchs_share_a_state():
    store = TORCH.dist.HashStore()
    theirs = TORCH.c10d.C10dRendezvousBackend(store, "job")
    ours = OURS.c10d.C10dRendezvousBackend(store, "job")
    held, token, has_set = ours.set_state(state(1))
    assert has_set
    assert theirs.get_state() == (held, token)
    assert theirs.set_state(state(2), token)[2]
    assert ours.get_state()[0] == state(2)


# ---- making the store ----


@pytest.mark.parametrize("kind", ["tcp", "TCP", " tcp "])
def test_a_tcp_store_is_hosted_as_asked(lib, kind):
    job = run_id()
    backend, store = lib.c10d.create_backend(
        lib.parameters(run_id=job, store_type=kind, is_host=True, read_timeout=10)
    )
    assert backend.name == "c10d"
    assert isinstance(store, lib.dist.TCPStore)
    assert (store.host, store.timeout) == ("localhost", timedelta(seconds=10))
    assert store.port != 0
    backend.set_state(state(1))
    assert store.get(f"torch.rendezvous.{job}") == base64.b64encode(state(1))


def test_a_second_process_connects_to_the_host(lib):
    job = run_id()
    first, store = lib.c10d.create_backend(lib.parameters(run_id=job, is_host=True))
    second, _ = lib.c10d.create_backend(lib.parameters(run_id=job, endpoint=f"localhost:{store.port}", is_host="false"))
    first.set_state(state(1))
    assert second.get_state()[0] == state(1)


def test_whoever_comes_first_hosts_if_nobody_was_told_to(lib):
    job = run_id()
    first, store = lib.c10d.create_backend(lib.parameters(run_id=job))
    second, other = lib.c10d.create_backend(lib.parameters(run_id=job, endpoint=f"localhost:{store.port}"))
    assert other.port == store.port
    first.set_state(state(1))
    assert second.get_state()[0] == state(1)


def test_times_are_torchs_unless_told_otherwise(lib):
    _, store = lib.c10d.create_backend(lib.parameters())
    assert store.timeout == timedelta(seconds=60)


@pytest.mark.parametrize("kind", ["file", " File "])
def test_a_file_store_is_made_where_asked(lib, kind, tmp_path):
    path = str(tmp_path / "store")
    backend, store = lib.c10d.create_backend(lib.parameters(endpoint=path, store_type=kind))
    assert isinstance(store, lib.dist.FileStore)
    assert store.path == path
    backend.set_state(state(1))
    assert store.get("torch.rendezvous.job") == base64.b64encode(state(1))


def test_a_file_store_without_a_path_gets_a_file_of_its_own(lib, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    _, store = lib.c10d.create_backend(lib.parameters(endpoint="", store_type="file"))
    assert store.path.startswith(str(tmp_path))


def test_a_file_that_cannot_be_made_is_said(lib, monkeypatch):
    def fail():
        raise OSError("no room")

    monkeypatch.setattr(tempfile, "mkstemp", fail)
    with pytest.raises(lib.api.RendezvousError) as error:
        lib.c10d.create_backend(lib.parameters(endpoint="", store_type="file"))
    assert str(error.value) == "The file creation for C10d store has failed. See inner exception for details."
    assert str(error.value.__cause__) == "no room"


@pytest.mark.parametrize("is_host", [False, None])
def test_a_store_that_nobody_hosts_is_a_connection_error(lib, is_host):
    with lib.ports.get_socket_with_port() as held:
        # Bound and not listening: nobody answers, and nobody else can host there.
        endpoint = f"localhost:{held.getsockname()[1]}"
        options = {} if is_host is None else {"is_host": is_host}
        with pytest.raises(lib.api.RendezvousConnectionError) as error:
            lib.c10d.create_backend(lib.parameters(endpoint=endpoint, read_timeout=2, **options))
    assert str(error.value) == "The connection to the C10d store has failed. See inner exception for details."
    assert isinstance(error.value.__cause__, lib.dist.DistNetworkError)


def test_a_host_that_cannot_host_is_a_connection_error(lib):
    with lib.ports.get_socket_with_port() as held:
        held.listen()
        endpoint = f"localhost:{held.getsockname()[1]}"
        with pytest.raises(lib.api.RendezvousConnectionError):
            lib.c10d.create_backend(lib.parameters(endpoint=endpoint, read_timeout=2, is_host=True))


@pytest.mark.parametrize("value", ["0", "-10"])
def test_a_read_timeout_must_be_positive(lib, value):
    with pytest.raises(ValueError) as error:
        lib.c10d.create_backend(lib.parameters(read_timeout=value))
    assert str(error.value) == "The read timeout must be a positive integer."


@pytest.mark.parametrize("kind", ["", "etcd", "x"])
def test_another_kind_of_store_is_refused(lib, kind):
    with pytest.raises(ValueError) as error:
        lib.c10d.create_backend(lib.parameters(store_type=kind))
    assert str(error.value) == "Invalid store type given. Currently only supports file and tcp."


@pytest.mark.parametrize("endpoint", ["h:99999", "a b:1"])
def test_an_endpoint_that_is_none_is_refused(lib, endpoint):
    with pytest.raises(ValueError, match="of the rendezvous endpoint"):
        lib.c10d.create_backend(lib.parameters(endpoint=endpoint))


@pytest.mark.parametrize("is_host", [True, False, None])
def test_an_endpoint_that_leads_nowhere_is_a_connection_error(lib, is_host):
    config = {"read_timeout": 1} | ({} if is_host is None else {"is_host": is_host})
    parameters = lib.parameters(endpoint="no-such-host.invalid:29400", **config)
    said = "^The connection to the C10d store has failed. See inner exception for details.$"
    with pytest.raises(lib.api.RendezvousConnectionError, match=said) as caught:
        lib.c10d.create_backend(parameters)
    assert isinstance(caught.value.__cause__, lib.dist.DistNetworkError)
