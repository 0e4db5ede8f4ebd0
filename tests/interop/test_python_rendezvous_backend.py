"""The `c10d` backend with each kind of store, and the creation of its store.

Tests with the fixture `lib` run with torch's library and with ours.
"""

import base64
import pickle
import tempfile
from datetime import timedelta

import pytest
from libraries import BOTH, OURS, TORCH, new_run_id


@pytest.fixture(params=BOTH, ids=repr)
def lib(request):
    return request.param


def state(number):
    """Returns a pickled state with this round number. Our server accepts only valid states under the key of a state."""
    new_state = TORCH.dynamic._RendezvousState()
    new_state.round = number
    return pickle.dumps(new_state)


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


def test_the_c10d_backend_has_a_name_and_requires_a_run_id(lib, store):
    assert lib.c10d.C10dRendezvousBackend(store, "job").name == "c10d"
    for empty in ("", None):
        with pytest.raises(ValueError) as error:
            lib.c10d.C10dRendezvousBackend(store, empty)
        assert str(error.value) == "The run id must be a non-empty string."


def test_a_new_backend_has_no_state(backend):
    assert backend.get_state() is None


def test_the_first_state_is_set_without_a_token(backend):
    current, token, has_set = backend.set_state(state(1))
    assert (current, has_set) == (state(1), True)
    assert token is not None
    assert backend.get_state() == (state(1), token)


def test_a_state_is_replaced_with_its_token(backend):
    _, token, _ = backend.set_state(state(1))
    current, second, has_set = backend.set_state(state(2), token)
    assert (current, has_set) == (state(2), True)
    assert second != token
    assert backend.get_state() == (state(2), second)


def test_an_outdated_token_replaces_nothing(backend):
    _, old, _ = backend.set_state(state(1))
    _, new, _ = backend.set_state(state(2), old)
    assert backend.set_state(state(3), old) == (state(2), new, False)
    assert backend.get_state() == (state(2), new)


def test_a_missing_token_replaces_nothing(backend):
    _, token, _ = backend.set_state(state(1))
    assert backend.set_state(state(2), None) == (state(1), token, False)
    assert backend.get_state() == (state(1), token)


@pytest.mark.parametrize("token", ["none of ours", 7, object()])
def test_a_token_of_another_kind_replaces_nothing(backend, token):
    assert backend.set_state(state(1), token) is None
    assert backend.get_state() is None
    backend.set_state(state(1))
    current, _, has_set = backend.set_state(state(2), token)
    assert (current, has_set) == (state(1), False)
    assert backend.get_state()[0] == state(1)


def test_backends_of_one_job_share_a_state_and_two_jobs_do_not(lib, store):
    first, second = (lib.c10d.C10dRendezvousBackend(store, "job") for _ in range(2))
    other = lib.c10d.C10dRendezvousBackend(store, "other job")
    _, token, _ = first.set_state(state(1))
    assert second.get_state() == (state(1), token)
    assert other.get_state() is None


def test_the_state_is_stored_under_torchs_key(lib, store):
    lib.c10d.C10dRendezvousBackend(store, "job").set_state(state(1))
    assert store.get("torch.rendezvous.job") == base64.b64encode(state(1))


def test_a_value_that_is_not_base64_is_a_corrupt_state(lib):
    store = lib.dist.HashStore()
    backend = lib.c10d.C10dRendezvousBackend(store, "job")
    store.set("torch.rendezvous.job", "non_base64")
    with pytest.raises(lib.api.RendezvousStateError) as error:
        backend.get_state()
    assert str(error.value) == "The state object is corrupt. See inner exception for details."
    assert error.value.__cause__ is not None


def test_our_server_refuses_a_value_that_is_not_a_state_and_describes_it():
    backend = OURS.c10d.C10dRendezvousBackend(OURS.server(), "job")
    with pytest.raises(OURS.api.RendezvousStateError) as error:
        backend.set_state(b"x")
    assert "first byte 0x78 does not begin a pickle" in str(error.value.__cause__)
    # Nothing was written, and the backend is still usable.
    assert backend.get_state() is None
    assert backend.set_state(state(1))[2]


def test_a_failing_store_raises_a_connection_error_with_the_stores_exception_as_cause(lib):
    class Failing(lib.dist.Store):
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


def test_our_backend_and_torchs_share_a_state_in_torchs_store():
    store = TORCH.dist.HashStore()
    theirs = TORCH.c10d.C10dRendezvousBackend(store, "job")
    ours = OURS.c10d.C10dRendezvousBackend(store, "job")
    current, token, has_set = ours.set_state(state(1))
    assert has_set
    assert theirs.get_state() == (current, token)
    assert theirs.set_state(state(2), token)[2]
    assert ours.get_state()[0] == state(2)


# ---- creating the store ----


@pytest.mark.parametrize("kind", ["tcp", "TCP", " tcp "])
def test_create_backend_hosts_a_tcp_store(lib, kind):
    job = new_run_id()
    backend, store = lib.c10d.create_backend(
        lib.parameters(run_id=job, store_type=kind, is_host=True, read_timeout=10)
    )
    assert backend.name == "c10d"
    assert isinstance(store, lib.dist.TCPStore)
    assert (store.host, store.timeout) == ("localhost", timedelta(seconds=10))
    assert store.port != 0
    backend.set_state(state(1))
    assert store.get(f"torch.rendezvous.{job}") == base64.b64encode(state(1))


def test_a_second_backend_connects_to_the_host(lib):
    job = new_run_id()
    first, store = lib.c10d.create_backend(lib.parameters(run_id=job, is_host=True))
    second, _ = lib.c10d.create_backend(lib.parameters(run_id=job, endpoint=f"localhost:{store.port}", is_host="false"))
    first.set_state(state(1))
    assert second.get_state()[0] == state(1)


def test_the_first_backend_hosts_the_store_if_is_host_is_not_given(lib):
    job = new_run_id()
    first, store = lib.c10d.create_backend(lib.parameters(run_id=job))
    second, other = lib.c10d.create_backend(lib.parameters(run_id=job, endpoint=f"localhost:{store.port}"))
    assert other.port == store.port
    first.set_state(state(1))
    assert second.get_state()[0] == state(1)


def test_the_read_timeout_has_torchs_default(lib):
    _, store = lib.c10d.create_backend(lib.parameters())
    assert store.timeout == timedelta(seconds=60)


@pytest.mark.parametrize("kind", ["file", " File "])
def test_create_backend_opens_a_file_store_at_the_endpoint(lib, kind, tmp_path):
    path = str(tmp_path / "store")
    backend, store = lib.c10d.create_backend(lib.parameters(endpoint=path, store_type=kind))
    assert isinstance(store, lib.dist.FileStore)
    assert store.path == path
    backend.set_state(state(1))
    assert store.get("torch.rendezvous.job") == base64.b64encode(state(1))


def test_a_file_store_without_a_path_uses_a_temporary_file(lib, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    _, store = lib.c10d.create_backend(lib.parameters(endpoint="", store_type="file"))
    assert store.path.startswith(str(tmp_path))


def test_a_file_that_cannot_be_created_raises_a_rendezvous_error(lib, monkeypatch):
    def fail():
        raise OSError("no room")

    monkeypatch.setattr(tempfile, "mkstemp", fail)
    with pytest.raises(lib.api.RendezvousError) as error:
        lib.c10d.create_backend(lib.parameters(endpoint="", store_type="file"))
    assert str(error.value) == "The file creation for C10d store has failed. See inner exception for details."
    assert str(error.value.__cause__) == "no room"


@pytest.mark.parametrize("is_host", [False, None])
def test_a_store_without_a_host_raises_a_connection_error(lib, is_host):
    with lib.ports.get_socket_with_port() as bound:
        # The socket is bound but does not listen: no server replies, and neither `create_backend` nor another process can
        # host the store there.
        endpoint = f"localhost:{bound.getsockname()[1]}"
        options = {} if is_host is None else {"is_host": is_host}
        with pytest.raises(lib.api.RendezvousConnectionError) as error:
            lib.c10d.create_backend(lib.parameters(endpoint=endpoint, read_timeout=2, **options))
    assert str(error.value) == "The connection to the C10d store has failed. See inner exception for details."
    assert isinstance(error.value.__cause__, lib.dist.DistNetworkError)


def test_a_host_whose_port_is_in_use_raises_a_connection_error(lib):
    with lib.ports.get_socket_with_port() as bound:
        bound.listen()
        endpoint = f"localhost:{bound.getsockname()[1]}"
        with pytest.raises(lib.api.RendezvousConnectionError):
            lib.c10d.create_backend(lib.parameters(endpoint=endpoint, read_timeout=2, is_host=True))


@pytest.mark.parametrize("value", ["0", "-10"])
def test_a_read_timeout_must_be_positive(lib, value):
    with pytest.raises(ValueError) as error:
        lib.c10d.create_backend(lib.parameters(read_timeout=value))
    assert str(error.value) == "The read timeout must be a positive integer."


@pytest.mark.parametrize("kind", ["", "etcd", "x"])
def test_an_unknown_store_type_is_refused(lib, kind):
    with pytest.raises(ValueError) as error:
        lib.c10d.create_backend(lib.parameters(store_type=kind))
    assert str(error.value) == "Invalid store type given. Currently only supports file and tcp."


@pytest.mark.parametrize("endpoint", ["h:99999", "a b:1"])
def test_an_invalid_endpoint_is_refused(lib, endpoint):
    with pytest.raises(ValueError, match="of the rendezvous endpoint"):
        lib.c10d.create_backend(lib.parameters(endpoint=endpoint))


@pytest.mark.parametrize("is_host", [True, False, None])
def test_an_endpoint_that_does_not_resolve_raises_a_connection_error(lib, is_host):
    config = {"read_timeout": 1} | ({} if is_host is None else {"is_host": is_host})
    parameters = lib.parameters(endpoint="no-such-host.invalid:29400", **config)
    message = "^The connection to the C10d store has failed. See inner exception for details.$"
    with pytest.raises(lib.api.RendezvousConnectionError, match=message) as caught:
        lib.c10d.create_backend(parameters)
    assert isinstance(caught.value.__cause__, lib.dist.DistNetworkError)
