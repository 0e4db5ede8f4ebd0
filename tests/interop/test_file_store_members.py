"""Reference counts, deletion and permissions of a file that torch's FileStores and ours share."""

import pytest
from files import PAIRS, SIDES, open_store, path  # noqa: F401  fixtures among them


@pytest.mark.parametrize("num_workers", [-1, 0, 2, 3])
@pytest.mark.parametrize("order", [("torch", "ours"), ("ours", "torch"), ("ours", "torch", "ours")])
def test_the_last_store_to_close_deletes_the_file_if_all_workers_have_opened_it(open_store, path, order, num_workers):
    stores = [open_store(side, num_workers) for side in order]
    for remaining, store in reversed(list(enumerate(stores))):
        store.close()
        is_deleted = remaining == 0 and 0 <= num_workers <= len(order)
        assert path.exists() != is_deleted, f"{remaining} stores remain"


@pytest.mark.parametrize("num_workers", [-1, 2])
def test_both_sides_write_identical_reference_counts(tmp_path, num_workers):
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
def test_two_workers_that_open_the_file_one_after_the_other_delete_it(open_store, path, first, second):
    open_store(first, 2).close()
    assert path.exists()
    open_store(second, 2).close()
    assert not path.exists()


def test_each_side_accepts_the_file_mode_of_the_other(open_store, path):
    ours = open_store("ours")
    assert path.stat().st_mode & 0o777 == 0o600
    torch = open_store("torch")
    torch.set("k", "v")
    assert ours.get("k") == b"v"
    path.unlink()
    torch.set("k", "w")
    assert path.stat().st_mode & 0o777 == 0o644
    assert ours.get("k") == b"w"
