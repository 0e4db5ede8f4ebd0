"""Who is counted in a file that torch's FileStores and ours share, who removes it, and who may use it."""

import pytest
from files import PAIRS, SIDES, path, start  # noqa: F401  fixtures among them


@pytest.mark.parametrize("num_workers", [-1, 0, 2, 3])
@pytest.mark.parametrize("order", [("torch", "ours"), ("ours", "torch"), ("ours", "torch", "ours")])
def test_the_last_one_out_removes_the_file_whichever_side_it_is(start, path, order, num_workers):
    stores = [start(side, num_workers) for side in order]
    for left, store in reversed(list(enumerate(stores))):
        store.close()
        gone = left == 0 and 0 <= num_workers <= len(order)
        assert path.exists() != gone, f"{left} left"


@pytest.mark.parametrize("num_workers", [-1, 2])
def test_the_bookkeeping_is_the_same_to_the_byte(tmp_path, num_workers):
    files = []
    for sides in [("torch", "torch", "torch"), ("ours", "ours", "ours"), ("ours", "torch", "ours")]:
        path = tmp_path / "-".join(sides)
        stores = [SIDES[side](path, num_workers) for side in sides]
        stores[1].set("k", "v")
        stores.pop(1).close()
        stores.pop(1).close()
        files.append(path.read_bytes())
        stores.pop().close()
        assert path.exists() == (num_workers < 0)
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_one_after_the_other_two_workers_remove_the_file(start, path, first, second):
    start(first, 2).close()
    assert path.exists()
    start(second, 2).close()
    assert not path.exists()


def test_each_side_accepts_the_mode_of_the_others_file(start, path):
    ours = start("ours")
    assert path.stat().st_mode & 0o777 == 0o600
    torch = start("torch")
    torch.set("k", "v")
    assert ours.get("k") == b"v"
    path.unlink()
    torch.set("k", "w")
    assert path.stat().st_mode & 0o777 == 0o644
    assert ours.get("k") == b"w"
