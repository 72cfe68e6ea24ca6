"""A folder of entries: whole or not at all, bounded, and no trouble for anybody when it is damaged."""

from __future__ import annotations

import errno
import os
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from relax_eg.store import Store, StoreWarning

HEAD = len(b"relax_eg entry 1\n") + 16


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "cache", 1000)
    assert store.read("a") is None and store.entries() == [] and store.clear() == 0
    for payload in (b"", b"first", bytes(range(256))):
        store.write("a", payload)
        assert store.read("a") == payload
    assert [p.name for p in store.folder.iterdir()] == ["a.entry"]
    assert store.clear() == 1 and store.read("a") is None


def test_every_damaged_byte_is_noticed_and_the_entry_written_anew(tmp_path: Path) -> None:
    store = Store(tmp_path, 1000)
    store.write("a", b"what a search found")
    path = tmp_path / "a.entry"
    whole = path.read_bytes()
    assert len(whole) == HEAD + len(b"what a search found")
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0x10]) + whole[i + 1 :])
        with pytest.warns(StoreWarning) as told:
            assert store.read("a") is None
        assert str(path) in str(told[0].message) and "is ignored" in str(told[0].message)
    for damaged in (b"", whole[:5], whole[:HEAD], whole[:-1], whole + b"x", b"garbage" * 50):
        path.write_bytes(damaged)
        with pytest.warns(StoreWarning, match=r"a\.entry is ignored: (it is no entry|its checksum)"):
            assert store.read("a") is None
    path.write_bytes(whole.replace(b"entry 1", b"entry 2"))
    with pytest.warns(StoreWarning, match="it is no entry of this version"):
        assert store.read("a") is None
    store.write("a", b"again")
    assert store.read("a") == b"again"


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    store = Store(tmp_path, 3 * (HEAD + 100))
    for name in "abc":
        store.write(name, bytes(100))
        os.utime(tmp_path / f"{name}.entry", ns=(ord(name), ord(name)))
    assert store.read("a") is not None  # used now
    store.write("d", bytes(100))
    assert sorted(p.stem for p, _ in store.entries()) == ["a", "c", "d"]
    store.write("e", bytes(250))
    assert [p.stem for p, _ in store.entries()] == ["e"]
    store.write("f", bytes(5000))  # larger than all that may be
    assert store.read("f") is None and store.read("e") is not None


def test_parts_that_nobody_finishes_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / "x.part", tmp_path / "y.part"
    for part in (old, new):
        part.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    (tmp_path / "notes.txt").write_text("of the user")
    Store(tmp_path, 1000).write("a", b"")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.entry", "notes.txt", "y.part"]


def test_a_full_disk_is_told_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = Store(tmp_path, 1000)
    monkeypatch.setattr("relax_eg.store.os.replace", full)
    with pytest.warns(StoreWarning, match=r"cannot write the cache in .*No space left on device"):
        store.write("a", b"")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.write("a", b"")
        assert store.read("a") is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none_is_told_of_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    store = Store(tmp_path / "file", 1000)
    with pytest.warns(StoreWarning) as told:
        store.write("a", b"")
        store.write("b", b"")
        assert store.read("a") is None and store.read("b") is None
    assert [str(w.message).partition(":")[0] for w in told] == [
        f"cannot write the cache in {store.folder}",
        f"cannot read the cache in {store.folder}",
    ]


def test_threads_share_a_folder(tmp_path: Path) -> None:
    store = Store(tmp_path, 20 * (HEAD + 1000))

    def work(i: int) -> bool:
        payload = bytes([i % 7]) * 1000
        store.write(f"{i % 7}", payload)
        found = store.read(f"{i % 7}")
        return found is None or found == payload

    with ThreadPoolExecutor(8) as pool, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(pool.map(work, range(200)))
    assert len(list(tmp_path.iterdir())) == 7
