"""The rendezvous API: names, parameters, registry, handlers, settings, errors.

Tests with the fixture `lib` run with torch's library and with ours.
"""

import inspect
import pickle
from datetime import timedelta

import pytest
from libraries import BOTH, OURS, TORCH


@pytest.fixture(params=BOTH, ids=repr)
def lib(request):
    return request.param


def message_of(error):
    """Returns the message of a caught exception."""
    return str(error.value)


# ---- names ----


@pytest.mark.parametrize("module", ["rdzv", "api", "dynamic", "static", "registry", "utils", "store", "ports"])
def test_our_modules_export_every_name_that_torch_exports(module):
    theirs, ours = getattr(TORCH, module), getattr(OURS, module)
    assert set(theirs.__all__) <= set(ours.__all__)
    for name in theirs.__all__:
        assert hasattr(ours, name), name


@pytest.mark.parametrize(
    ("module", "extra"),
    [("c10d", {"C10dRendezvousBackend", "create_backend", "DEFAULT_PORT"}), ("dynamic", {"Token", "get_method_name"})],
)
def test_our_modules_have_the_public_names_that_torch_omits_from_dunder_all(module, extra):
    for name in extra:
        assert hasattr(getattr(TORCH, module), name), name
        assert hasattr(getattr(OURS, module), name), name
    assert TORCH.c10d.DEFAULT_PORT == OURS.c10d.DEFAULT_PORT


CALLABLES = [
    ("api", "RendezvousParameters"),
    ("api", "RendezvousInfo"),
    ("api", "RendezvousStoreInfo"),
    ("api", "RendezvousStoreInfo.build"),
    ("api", "RendezvousParameters.get"),
    ("api", "RendezvousParameters.get_as_bool"),
    ("api", "RendezvousParameters.get_as_int"),
    ("api", "RendezvousHandlerRegistry"),
    ("api", "RendezvousHandlerRegistry.register"),
    ("api", "RendezvousHandlerRegistry.create_handler"),
    ("c10d", "C10dRendezvousBackend"),
    ("c10d", "create_backend"),
    ("dynamic", "RendezvousBackend.get_state"),
    ("dynamic", "RendezvousBackend.set_state"),
    ("dynamic", "RendezvousTimeout"),
    ("dynamic", "RendezvousSettings"),
    ("dynamic", "DynamicRendezvousHandler.from_backend"),
    ("dynamic", "create_handler"),
    ("dynamic", "get_method_name"),
    ("static", "StaticTCPRendezvous"),
    ("static", "create_rdzv_handler"),
    ("registry", "get_rendezvous_handler"),
    ("utils", "parse_rendezvous_endpoint"),
    ("store", "barrier"),
    ("store", "synchronize"),
    ("store", "get_all"),
    ("store", "store_timeout"),
    ("ports", "create_c10d_store"),
    ("ports", "get_free_port"),
    ("ports", "get_socket_with_port"),
]


@pytest.mark.parametrize(("module", "name"), CALLABLES)
def test_arguments_have_torchs_names_order_and_defaults(module, name):
    def shape(lib):
        found = getattr(lib, module)
        for part in name.split("."):
            found = getattr(found, part)
        parameters = inspect.signature(found).parameters.values()
        return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]

    assert shape(OURS) == shape(TORCH)


def test_every_public_name_has_a_docstring():
    for module in ("rdzv", "api", "dynamic", "c10d", "static", "registry", "utils", "store", "ports"):
        module = getattr(OURS, module)
        assert module.__doc__, module
        for name in getattr(module, "__all__", ["C10dRendezvousBackend", "create_backend"]):
            found = getattr(module, name)
            if not (inspect.isclass(found) or inspect.isfunction(found)):
                continue
            assert inspect.getdoc(found), f"{module.__name__}.{name}"
            for method, member in vars(found).items() if inspect.isclass(found) else ():
                if not method.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    assert inspect.getdoc(getattr(found, method)), f"{module.__name__}.{name}.{method}"


# ---- parameters ----


def test_parameters_store_their_arguments(lib):
    given = lib.api.RendezvousParameters("b", "h:1", "job", 1, 3, "me", timeout=7, x="y")
    assert (given.backend, given.endpoint, given.run_id) == ("b", "h:1", "job")
    assert (given.min_nodes, given.max_nodes, given.local_addr) == (1, 3, "me")
    assert given.config == {"timeout": 7, "x": "y"}
    assert lib.api.RendezvousParameters("b", "h:1", "job", 1, 3).local_addr is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": ""}, "The rendezvous backend name must be a non-empty string."),
        ({"backend": None}, "The rendezvous backend name must be a non-empty string."),
        ({"min_nodes": 0}, "The minimum number of rendezvous nodes (0) must be greater than zero."),
        ({"min_nodes": -1}, "The minimum number of rendezvous nodes (-1) must be greater than zero."),
        (
            {"min_nodes": 3, "max_nodes": 2},
            "The maximum number of rendezvous nodes (2) must be greater than or equal to the minimum number of rendezvous "
            "nodes (3).",
        ),
    ],
)
def test_invalid_parameters_are_refused(lib, arguments, message):
    with pytest.raises(ValueError) as error:
        lib.parameters(**arguments)
    assert message_of(error) == message


def test_an_option_named_like_a_parameter_is_refused(lib):
    with pytest.raises(TypeError, match="multiple values for .*'run_id'"):
        lib.api.RendezvousParameters("b", "h", "job", 1, 1, None, run_id="again")


def test_get_returns_the_option_or_the_default(lib):
    given = lib.parameters(a="x", none=None)
    assert given.get("a") == "x"
    assert given.get("b") is None
    assert given.get("b", 7) == 7
    assert given.get("none", 7) is None


TRUE = ["1", "True", "tRue", "t", "T", "yes", "YES", "y", 1, True]
FALSE = ["0", "False", "f", "F", "no", "n", "N", 0, False]


@pytest.mark.parametrize(("value", "expected"), [*((value, True) for value in TRUE), *((value, False) for value in FALSE)])
def test_get_as_bool_converts_valid_values(lib, value, expected):
    assert lib.parameters(key=value).get_as_bool("key") is expected


@pytest.mark.parametrize("value", ["01", "Flse", "on", "", " 1", "g", 2, -1, 1.0, 0.5, [], {"a": 1}])
def test_get_as_bool_refuses_other_values(lib, value):
    with pytest.raises(ValueError) as error:
        lib.parameters(key=value).get_as_bool("key")
    assert message_of(error) == "The rendezvous configuration option 'key' does not represent a valid boolean value."


@pytest.mark.parametrize("getter", ["get_as_bool", "get_as_int"])
def test_a_missing_option_has_its_default_value(lib, getter):
    given = lib.parameters(none=None)
    assert getattr(given, getter)("key") is None
    assert getattr(given, getter)("key", 1) == 1
    assert getattr(given, getter)("none", 1) is None


@pytest.mark.parametrize(
    ("value", "expected"), [("0", 0), ("-1", -1), (" 7 ", 7), ("1_000", 1000), ("+3", 3), (5, 5), (True, 1), (1.9, 1), (2**70, 2**70)]
)
def test_get_as_int_converts_valid_values(lib, value, expected):
    assert lib.parameters(key=value).get_as_int("key") == expected


@pytest.mark.parametrize("value", ["a", "0a", "3b", "1.0", "0x10", "", "abc"])
def test_get_as_int_refuses_other_text(lib, value):
    with pytest.raises(ValueError) as error:
        lib.parameters(key=value).get_as_int("key")
    assert message_of(error) == "The rendezvous configuration option 'key' does not represent a valid integer value."
    assert isinstance(error.value.__cause__, ValueError)


def test_get_as_int_raises_a_type_error_for_a_list(lib):
    with pytest.raises(TypeError):
        lib.parameters(key=[]).get_as_int("key")


# ---- registry ----


def handler_class(lib):
    """Returns a handler class written in Python."""

    class Handler(lib.api.RendezvousHandler):
        def __init__(self, params, name):
            self.params, self.name = params, name

        def get_backend(self):
            return self.name

        def next_rendezvous(self):
            return lib.api.RendezvousInfo(lib.dist.HashStore(), 0, 1, lib.api.RendezvousStoreInfo("here", 1))

        def is_closed(self):
            return False

        def set_closed(self):
            pass

        def num_nodes_waiting(self):
            return 0

        def get_run_id(self):
            return self.params.run_id

        def shutdown(self):
            return True

    return Handler


def test_a_handler_written_in_python_can_be_registered_and_created(lib):
    registry = lib.api.RendezvousHandlerRegistry()
    registry.register("mine", lambda params: handler_class(lib)(params, "mine"))
    handler = registry.create_handler(lib.parameters(backend="mine", run_id="this job"))
    assert isinstance(handler, lib.rdzv.RendezvousHandler)
    assert handler.get_run_id() == "this job"
    assert handler.use_agent_store is False
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size, info.bootstrap_store_info.master_port) == (0, 1, 1)
    info.store.set("k", "v")
    assert info.store.get("k") == b"v"
    assert handler.shutdown()


def test_registering_the_same_creator_twice_is_allowed_and_another_one_is_refused(lib):
    registry = lib.api.RendezvousHandlerRegistry()

    def first(params):
        return handler_class(lib)(params, "mine")

    def second(params):
        return handler_class(lib)(params, "mine")

    registry.register("mine", first)
    registry.register("mine", first)
    with pytest.raises(ValueError) as error:
        registry.register("mine", second)
    assert message_of(error) == (
        f"The rendezvous backend 'mine' cannot be registered with '{second}' as it is already registered with '{first}'."
    )
    assert registry.create_handler(lib.parameters(backend="mine")).get_backend() == "mine"


@pytest.mark.parametrize("name", [None, ""])
def test_registering_a_backend_without_a_name_is_refused(lib, name):
    with pytest.raises(ValueError) as error:
        lib.api.RendezvousHandlerRegistry().register(name, lambda params: None)
    assert message_of(error) == "The rendezvous backend name must be a non-empty string."


def test_a_backend_that_is_not_registered_is_refused(lib):
    with pytest.raises(ValueError) as error:
        lib.api.RendezvousHandlerRegistry().create_handler(lib.parameters(backend="none such"))
    assert message_of(error).startswith(
        "The rendezvous backend 'none such' is not registered. Did you forget to call `register`?"
    )


def test_a_handler_of_another_backend_is_refused(lib):
    registry = lib.api.RendezvousHandlerRegistry()
    registry.register("mine", lambda params: handler_class(lib)(params, "other"))
    with pytest.raises(RuntimeError) as error:
        registry.create_handler(lib.parameters(backend="mine"))
    assert message_of(error) == "The rendezvous backend 'other' does not match the requested backend 'mine'."


def test_the_global_registry_creates_the_built_in_handlers(lib):
    handler = lib.registry.get_rendezvous_handler(lib.parameters())
    assert isinstance(handler, lib.dynamic.DynamicRendezvousHandler)
    assert handler.get_backend() == "c10d"
    static = lib.parameters(backend="static", endpoint="localhost:1", rank=0)
    assert isinstance(lib.rdzv.rendezvous_handler_registry.create_handler(static), lib.static.StaticTCPRendezvous)


def test_an_unknown_option_is_refused_with_a_suggestion():
    with pytest.raises(ValueError, match="'jion_timeout'; did you mean 'join_timeout'?"):
        OURS.registry.get_rendezvous_handler(OURS.parameters(jion_timeout=3))


@pytest.mark.parametrize("name", ["RendezvousHandler", "RendezvousBackend"])
def test_an_abstract_class_cannot_be_instantiated(lib, name):
    kind = getattr(lib.api if name == "RendezvousHandler" else lib.dynamic, name)
    with pytest.raises(TypeError, match="abstract"):
        type("Unfinished", (kind,), {"shutdown": lambda self: True, "get_state": lambda self: None})()


# ---- results and errors ----


def test_rendezvous_info_stores_its_arguments_and_is_read_only(lib):
    store_info = lib.api.RendezvousStoreInfo("here", 7)
    store = lib.dist.HashStore()
    info = lib.api.RendezvousInfo(store, 1, 2, store_info)
    assert (info.store, info.rank, info.world_size, info.bootstrap_store_info) == (store, 1, 2, store_info)
    with pytest.raises(AttributeError):
        info.rank = 3


def test_rendezvous_store_info_compares_by_value(lib):
    info = lib.api.RendezvousStoreInfo
    assert info("h", 1) == info(master_addr="h", master_port=1)
    assert info("h", 1) != info("h", 2)
    assert repr(info("h", 1)) == "RendezvousStoreInfo(master_addr='h', master_port=1)"
    assert (info.MASTER_ADDR_KEY, info.MASTER_PORT_KEY) == ("MASTER_ADDR", "MASTER_PORT")


def test_rank_0_publishes_the_address_of_the_workers_store_and_all_ranks_read_it(lib):
    store = lib.dist.HashStore()
    info = lib.api.RendezvousStoreInfo
    first = info.build(0, store, "127.0.0.9", 4711)
    second = info.build(1, store, "127.0.0.8")
    assert first == second == info("127.0.0.9", 4711)
    assert (store.get("MASTER_ADDR"), store.get("MASTER_PORT")) == (b"127.0.0.9", b"4711")


def test_rank_0_chooses_an_address_and_a_port_if_none_is_given(lib):
    import socket

    found = lib.api.RendezvousStoreInfo.build(0, lib.dist.HashStore(), None)
    assert found.master_addr == socket.getfqdn()
    assert 0 < found.master_port < 65536


ERRORS = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousGracefulExitError",
    "RendezvousStateError",
    "RendezvousTimeoutError",
]


@pytest.mark.parametrize("name", ERRORS)
def test_all_errors_share_a_base_class_and_can_be_pickled(lib, name):
    error = getattr(lib.rdzv, name)("why")
    assert isinstance(error, lib.rdzv.RendezvousError)
    assert not isinstance(error, RuntimeError)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), "why")


# ---- settings ----


def test_timeouts_have_torchs_defaults(lib):
    times = lib.dynamic.RendezvousTimeout()
    assert (times.join, times.last_call) == (timedelta(seconds=600), timedelta(seconds=30))
    assert (times.close, times.heartbeat) == (timedelta(seconds=30), timedelta(seconds=5))
    times = lib.dynamic.RendezvousTimeout(*(timedelta(seconds=seconds) for seconds in (60, 10, 20, 5)))
    assert (times.join.seconds, times.last_call.seconds, times.close.seconds, times.heartbeat.seconds) == (60, 10, 20, 5)


@pytest.mark.parametrize("name", ["join", "last_call", "close", "heartbeat"])
@pytest.mark.parametrize("time", [timedelta(0), timedelta(seconds=-1)])
def test_a_timeout_that_is_not_positive_is_refused(lib, name, time):
    with pytest.raises(ValueError) as error:
        lib.dynamic.RendezvousTimeout(**{name: time})
    assert message_of(error) == f"The {name} timeout ({time}) must be positive."


def test_settings_are_read_only(lib):
    settings = lib.dynamic.RendezvousSettings("job", 1, 2, lib.dynamic.RendezvousTimeout(), timedelta(seconds=5), 3)
    assert (settings.run_id, settings.min_nodes, settings.cas_backoff_max_seconds) == ("job", 1, 0.0)
    with pytest.raises(AttributeError):
        settings.run_id = "other"


def test_get_method_name_returns_the_name_of_its_callers_caller(lib):
    def inner():
        return lib.dynamic.get_method_name()

    def outer():
        return inner()

    assert outer() == "outer"
    assert lib.dynamic.get_method_name(depth=10_000) == "no_method_name"


# ---- endpoints ----


@pytest.mark.parametrize(
    "endpoint",
    [None, "", "  ", "h", "h:1", "h:65535", "h:0", " h : ", "h:01", "h:1:2", "[::1]", "[::1]:5", "10.0.0.1:29400", "a_b"]
    + ["h:", "h:65536", "h:99999", "h:-1", "h: 1", "h:1x", "a b", "[", "[]", "http://x:1", "/tmp/x"],
)
def test_endpoints_are_parsed_as_in_torch(endpoint):
    def outcome(lib):
        try:
            return lib.utils.parse_rendezvous_endpoint(endpoint, 123)
        except ValueError as error:
            return str(error)

    assert outcome(OURS) == outcome(TORCH)


def test_an_ipv6_address_without_brackets_and_port_gets_the_default_port():
    assert OURS.utils.parse_rendezvous_endpoint("::1", 123) == ("::1", 123)
    assert OURS.utils.parse_rendezvous_endpoint("::1", -1) == ("::1", -1)
