import asyncio
import contextlib
import logging
import sqlite3
import stat

import pytest

from ludus.controller.records import SessionSpec
from ludus.controller.service.journal import FILE, Journal
from ludus.errors import ControllerFailed
from ludus.types import Task


def row(number, *, worker_id="w1"):
    spec = SessionSpec(
        Task("maze/train/0", "maze", "train"),
        seed=3,
        request_id=f"r{number}",
        lease_s=30.0,
        timeout_s=9.0,
        session_id=f"s{number}",
        key="secret",
        client="ann",
    )
    return spec, worker_id


def put(journal, row):
    spec, worker_id = row
    journal.put(spec, worker_id=worker_id)


def written(folder, *, rows=(), dropped=(), drained=()):
    async def write():
        journal = Journal(str(folder))
        for each in rows:
            put(journal, each)
        for session_id in dropped:
            journal.drop(session_id)
        for worker_id, draining in drained:
            journal.drain(worker_id, draining)
        await journal.close()

    asyncio.run(write())


def loaded(folder):
    async def load():
        journal = Journal(str(folder))
        try:
            return journal.load()
        finally:
            await journal.close()

    return asyncio.run(load())


def test_what_was_put_is_loaded_and_what_was_dropped_is_not(tmp_path):
    rows = [row(n) for n in range(3)]
    written(tmp_path, rows=rows, dropped=["s1", "never-there"], drained=[("w1", True), ("w2", True)])
    written(tmp_path, drained=[("w2", False)])
    assert loaded(tmp_path) == ([rows[0], rows[2]], {"w1"})
    assert loaded(tmp_path)[0][0][0].task.id == "maze/train/0"


def test_changes_are_written_while_it_runs_not_only_at_the_end(tmp_path):
    async def test():
        journal = Journal(str(tmp_path))
        journal.begin()
        put(journal, row(0))
        put(journal, row(1))
        journal.drop("s0")
        async with asyncio.timeout(60):
            while journal._changes:
                await asyncio.sleep(0.01)
        assert journal._writing is not None
        await journal._writing
        assert [spec.session_id for spec, _ in journal.load()[0]] == ["s1"]
        await journal.close()

    asyncio.run(test())


def test_without_a_folder_nothing_is_kept():
    async def test():
        journal = Journal()
        journal.begin()
        put(journal, row(0))
        assert journal.load() == ([], set())
        await journal.close()

    asyncio.run(test())


def test_only_the_owner_may_read_the_file_for_it_holds_keys(tmp_path):
    written(tmp_path, rows=[row(0)])
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", ["garbage", "truncated", "middle", "empty", "other_tables", "other_specs"])
def test_a_damaged_file_is_put_aside_with_a_clear_message_and_the_start_goes_on(tmp_path, damage, caplog):
    written(tmp_path, rows=[row(n) for n in range(500)])
    file = tmp_path / FILE
    data = file.read_bytes()
    if damage == "garbage":
        file.write_bytes(b"this is no database" * 100)
    elif damage == "truncated":
        file.write_bytes(data[: len(data) // 2])
    elif damage == "middle":
        file.write_bytes(data[:4096] + b"\xa5" * 8192 + data[12288:])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "other_tables":
        file.unlink()
        with contextlib.closing(sqlite3.connect(file)) as other:
            other.execute("create table sessions (something_else text)")
    elif damage == "other_specs":
        with contextlib.closing(sqlite3.connect(file)) as other:
            other.execute("update sessions set spec = '{}' where session_id = 's7'")
            other.commit()
    with caplog.at_level(logging.WARNING):
        assert loaded(tmp_path) == ([], set())
    if damage == "empty":  # nothing is lost that was there
        return
    assert "is damaged" in caplog.text
    assert "put aside as controller.sqlite3.damaged-1" in caplog.text
    assert (tmp_path / f"{FILE}.damaged-1").exists()
    written(tmp_path, rows=[row(7)])
    assert [spec.session_id for spec, _ in loaded(tmp_path)[0]] == ["s7"]


def test_two_controllers_cannot_share_a_folder(tmp_path):
    async def test():
        first = Journal(str(tmp_path))
        with pytest.raises(ControllerFailed, match="used by another controller"):
            Journal(str(tmp_path))
        await first.close()

    asyncio.run(test())


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ControllerFailed, match="--state"):
        Journal(str(tmp_path / "file" / "state"))
