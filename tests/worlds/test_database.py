import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.environments import make
from ludus.errors import ConfigError, EnvironmentFailed
from ludus.types import Action, ToolCall
from ludus.worlds.database import generated, servers
from ludus.worlds.database.dbbench import read_dbbench
from ludus.worlds.database.grading import same_answers, same_rows, table_hash
from ludus.worlds.database.servers import open_server
from ludus.worlds.database.store import QueryRefused, SqliteStore, Table
from tests.worlds.contract import MEGABYTE, assert_splits_are_apart, call, first_prompts, opened, read
from tests.worlds.playing import play, won, world

DBBENCH = Path(os.environ.get("LUDUS_DATA", "../shared/data")) / "agentbench" / "dbbench" / "standard.jsonl"
needs_dbbench = pytest.mark.skipif(not DBBENCH.is_file(), reason="no DBBench file")
needs_mariadb = pytest.mark.skipif(not shutil.which("mariadbd"), reason="no mariadb-server")
PETS = Table("pets", (("name", "VARCHAR(80)"), ("age", "INTEGER")), (("Rex", 3), ("Tom", 5)))
DIFFER_ON_SQLITE = {
    164,  # '\n' in a literal is a line break for MySQL, two characters for SQLite
    180,  # a table name that begins with a digit, without quotes
    206,  # é is e for MySQL's collation
    225,  # the file's hash is not that of its own gold SQL, on MariaDB neither
    242,  # '\n' again
}


# ------------------------------------------------------------------------------------------------ the session


def test_a_question_is_looked_up_and_answered():
    environment = world("database")
    task = next(task for task in environment.tasks("test") if task.data["category"] in generated.SELECTS)
    session = environment.open(task, seed=0)
    session.start()
    assert len(read(call(session, "execute_sql", query=task.data["sql"])).splitlines()) == 1 + len(task.data["answers"])
    end = call(session, "commit_final_answer", answers=list(reversed(task.data["answers"])))
    assert (end.reward, end.done, read(end)) == (1.0, True, "committed")
    session.close()


def test_a_change_is_graded_by_what_the_tables_hold_and_not_by_what_is_said():
    environment = world("database")
    tasks = [task for task in environment.tasks("test") if task.data["category"] in generated.WRITES][:10]
    for task in tasks:
        idle = environment.open(task, seed=0)
        idle.start()
        assert call(idle, "commit_final_answer", answers=["done"]).reward == 0.0
        twice = environment.open(task, seed=0)
        twice.start()
        call(twice, "execute_sql", query=task.data["sql"])
        call(twice, "execute_sql", query=f"DROP TABLE {task.data['tables'][0]['name']}")
        assert call(twice, "commit_final_answer", answers=["done"]).reward == 0.0
        assert won(play(environment, task=task, seed=0))


def test_right_and_wrong_commits_read_alike():
    environment = world("database")
    task = environment.tasks("test")[0]
    ends = []
    for answers in (task.data["answers"], ["nonsense"]):
        session = environment.open(task, seed=0)
        session.start()
        ends.append(call(session, "commit_final_answer", answers=answers))
    assert ends[0].messages == ends[1].messages


def test_every_template_occurs_in_train_and_test():
    for split in ("train", "test"):
        kinds = {task.data["category"] for task in world("database").tasks(split)}
        assert kinds == set(generated.SELECTS) | set(generated.WRITES)


def test_the_prompt_holds_no_gold_sql_and_no_rows():
    for task, prompt in first_prompts(world("database")):
        assert task.data["sql"] not in prompt
        assert not any(" | " in line for line in prompt.splitlines())
        asked = prompt.splitlines()[-3]
        if task.data["category"] in generated.SELECTS:
            assert (
                not all(f" {answer}" in asked for answer in task.data["answers"]) or "whose" in asked or "have" in asked
            )


# ------------------------------------------------------------------------------------------------ hostile input


@pytest.mark.parametrize(
    "query",
    [
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) INSERT INTO pets SELECT 'x', x FROM n",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x, zeroblob(9000) FROM n ORDER BY x DESC",
        "SELECT zeroblob(1000000000)",
        "SELECT printf('%.*c', 1000000000, 'x')",
        "SELECT replace(hex(zeroblob(9000)), '00', hex(zeroblob(9000)))",
        "ATTACH DATABASE '/etc/passwd' AS other",
        "PRAGMA writable_schema = 1",
        "PRAGMA max_page_count = 1000000000",
        "SELECT load_extension('libc.so.6')",
        "VACUUM INTO '/tmp/stolen.db'",
        "CREATE VIRTUAL TABLE t USING fts5(a)",
        "SELECT 1; SELECT 2",
        "SELECT readfile('/etc/passwd')",
        "SELECT \0",
        "SELECT '\ud800'",
        "nonsense",
        "(" * 5000,
    ],
)
def test_a_query_that_loops_floods_or_breaks_out_is_refused_and_the_session_goes_on(query):
    store = SqliteStore([PETS])
    with pytest.raises(QueryRefused) as refusal:
        store.execute(query)
    assert 0 < len(str(refusal.value)) <= 200
    assert store.execute("SELECT count(*) FROM pets") == "count(*)\n2"
    store.close()


def test_a_flood_of_rows_is_cut_at_800_characters_with_a_notice():
    store = SqliteStore([PETS])
    text = store.execute("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n")
    assert len(text) == 800 + len("\n[TRUNCATED]")
    assert text.endswith("\n[TRUNCATED]")
    assert store.execute("SELECT hex(zeroblob(4000))").endswith("[TRUNCATED]")


def test_dropping_everything_stays_within_the_session():
    environment = world("database")
    session, other = opened(environment), opened(environment)
    table = environment.tasks("test")[0].data["tables"][0]["name"]
    assert read(call(session, "execute_sql", query=f"DROP TABLE {table}")).startswith("ok")
    assert "no such table" in read(call(session, "execute_sql", query=f"SELECT * FROM {table}"))
    assert not call(other, "execute_sql", query=f"SELECT * FROM {table}").invalid


def test_wrong_types_and_megabytes_get_an_explanation():
    session = opened(world("database"))
    for arguments in ({"query": 5}, {"query": MEGABYTE}, {}):
        seen = session.act(Action(tool_calls=(ToolCall("execute_sql", arguments),)))
        assert seen.invalid
        assert len(read(seen)) < 200
    assert session.act(Action(tool_calls=(ToolCall("commit_final_answer", {"answers": "5"}),))).invalid
    end = call(session, "commit_final_answer", answers=[MEGABYTE] * 3)
    assert (end.done, end.reward) == (True, 0.0)


# ------------------------------------------------------------------------------------------------ grading


@pytest.mark.parametrize(
    ("given", "label", "same"),
    [
        (["3,729.7"], ["3729.70"], True),
        (["91"], ["91.0"], True),
        (["12%"], ["12"], True),
        (["91.02"], ["91.0"], False),
        (["none"], ["0"], True),
        ([""], ["null"], True),
        ([], ["none"], False),
        ([], ["0"], False),
        (["b", "a"], ["a", "b"], True),
        (["a", "a"], ["a"], True),
        (["a", "b"], ["a"], False),
        (["1", "2.001"], ["2", "1"], True),
        (["1", "2", "3"], ["2", "1"], False),
        (["['a', 'b']"], ["a", "b"], True),
        (["[('a',), ('b',)]"], ["a", "b"], True),
        (["[__import__('os').system('true')]"], ["0"], False),
        (["[" * 5000], ["a"], False),
        (["Smith, John"], ["Smith, John"], True),
        (["smith"], ["Smith"], False),
    ],
)
def test_answers_are_compared_by_dbbenchs_rules(given, label, same):
    assert same_answers(given, label) is same


@given(st.lists(st.text(max_size=20), max_size=4))
@settings(max_examples=200, deadline=None)
def test_any_answer_can_be_graded(answers):
    assert same_answers(answers, ["a"]) in (True, False)


def test_rows_are_the_same_in_any_order_but_as_often():
    assert same_rows([(1, "a"), (2, None)], [(2.0, None), (1, "a")])
    assert not same_rows([(1, "a"), (1, "a")], [(1, "a")])
    assert not same_rows([("1",)], [(1,)])
    assert not same_rows(None, [])


def test_the_hash_does_not_depend_on_the_order_and_skips_nulls():
    assert table_hash([("a", "b"), ("c", None)]) == table_hash([("c",), ("a", "b")])
    assert table_hash([("a", "b")]) != table_hash([("b", "a")])


# ------------------------------------------------------------------------------------------------ DBBench


@needs_dbbench
def test_all_300_items_load_as_test_tasks_beside_generated_train_tasks():
    environment = world("database", dbbench=str(DBBENCH))
    assert len(environment.tasks("test")) == 300
    assert len(environment.tasks("train")) == 1000
    assert_splits_are_apart(environment, by=lambda data: data["question"])
    folder = make("database", options={"dbbench": str(DBBENCH.parent)})
    assert (len(folder.tasks("test")), len(folder.tasks("dev"))) == (300, 60)


@needs_dbbench
def test_query_items_grade_their_own_labels_as_right_and_the_writes_reproduce_their_hashes_on_sqlite():
    environment = world("database", dbbench=str(DBBENCH))
    lost = {i for i, task in enumerate(environment.tasks("test")) if not won(play(environment, task=task, seed=0))}
    assert lost == DIFFER_ON_SQLITE


def test_a_broken_file_is_named_with_its_line(tmp_path):
    file = tmp_path / "half.jsonl"
    item = {"description": "?", "label": ["1"], "type": ["other"], "sql": {"query": "SELECT 1"}}
    table = {"table_name": "t", "table_info": {"columns": [{"name": "a", "type": "TEXT"}], "rows": [["1"]]}}
    file.write_text(json.dumps(item | {"table": table}) + "\n" + json.dumps(item)[:50])
    with pytest.raises(ConfigError, match=r"line 2 of .*half\.jsonl"):
        read_dbbench(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        make("database", options={"dbbench": str(tmp_path / "none.jsonl")}).tasks("test")


# ------------------------------------------------------------------------------------------------ servers


def must_come_up(server, is_up):
    give_up = time.monotonic() + 120
    while not is_up():
        assert server.poll() is None, "the server ended"
        assert time.monotonic() < give_up, "the server does not come up"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def mariadb():
    # the path of a socket must be short
    folder = Path(tempfile.mkdtemp(prefix="ludus-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    install = ["mariadb-install-db", "--no-defaults", f"--datadir={folder}/data", "--skip-test-db", "--user=root"]
    subprocess.run([*install, "--auth-root-authentication-method=normal"], check=True, capture_output=True)
    server = subprocess.Popen(
        ["mariadbd", "--no-defaults", f"--datadir={folder}/data", "--user=root", f"--socket={folder}/s", "--skip-networking"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        must_come_up(server, (folder / "s").exists)
        yield f"mysql://root@localhost/?unix_socket={folder}/s", server
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def databases(url):
    store = open_server(url, [])
    try:
        with store._admin.cursor() as cursor:
            cursor.execute("SHOW DATABASES")
            return {name for (name,) in cursor.fetchall() if name.startswith("ludus_") and name != store._own}
    finally:
        store.close()


@needs_mariadb
def test_a_session_on_mariadb_has_a_database_of_its_own_which_goes_with_it(mariadb):
    pytest.importorskip("pymysql")
    url, _ = mariadb
    one, other = open_server(url, [PETS]), open_server(url, [PETS])
    assert one.execute("SELECT name FROM pets WHERE age > 3") == "name\nTom"
    assert one.execute("DROP TABLE pets").startswith("ok")
    assert one.rows("pets") is None
    assert other.rows("pets") == [("Rex", 3), ("Tom", 5)]
    for query in ("DROP DATABASE mysql", f"DROP DATABASE {other._own}", f"SELECT * FROM {other._own}.pets", "selec"):
        with pytest.raises(QueryRefused):
            one.execute(query)
    flood = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
    assert one.execute(flood).endswith("[TRUNCATED]")
    assert one.execute("SELECT 1") == "1\n1"
    one.close()
    other.close()
    assert databases(url) == set()


KEEPER = """
import sys, time
from ludus.worlds.database.servers import open_server
store = open_server(sys.argv[1], [])
print(store._own, flush=True)
time.sleep(1000)
"""


def assert_a_killed_process_leaves_nothing(url, *, databases):
    """`databases()` opens a store too, which is what removes the dead one's; a live one's stays."""
    keepers = [
        subprocess.Popen([sys.executable, "-c", KEEPER, url], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    left = {keeper: keeper.stdout.readline().strip() for keeper in keepers}
    assert databases(url) >= set(left.values())
    for keeper in keepers:
        keeper.kill()
        keeper.communicate()
        del left[keeper]
        deadline = time.monotonic() + 60
        while True:  # the server notices a moment later
            servers._swept.clear()
            databases(url)
            if databases(url) == set(left.values()):
                break
            assert time.monotonic() < deadline, databases(url)


@needs_mariadb
def test_a_killed_process_leaves_no_database_on_mariadb_once_another_has_come(mariadb):
    pytest.importorskip("pymysql")
    assert_a_killed_process_leaves_nothing(mariadb[0], databases=databases)


@needs_mariadb
def test_generated_tasks_are_solved_on_mariadb_too(mariadb):
    pytest.importorskip("pymysql")
    assert_solved_at(mariadb[0])


def assert_solved_at(url):
    environment = make("database", options={"url": url})
    tasks = {task.data["category"]: task for task in world("database").tasks("test")}
    for task in list(tasks.values())[::4]:
        session = environment.open(task, seed=0)
        session.start()
        while not (seen := session.act(session.solve())).done:
            pass
        session.close()
        assert seen.reward == 1.0, task


@pytest.mark.slow
@needs_mariadb
@needs_dbbench
def test_mariadb_reproduces_197_of_200_hashes_of_gold_writes(mariadb, request):
    pytest.importorskip("pymysql")
    if request.config.option.markexpr != "slow":
        pytest.skip("makes 200 databases; run with -m slow")
    environment = make("database", options={"url": mariadb[0], "dbbench": str(DBBENCH)})
    tasks = [(i, task) for i, task in enumerate(environment.tasks("test")) if "hash" in task.data]
    lost = set()
    for i, task in tasks:
        session = environment.open(task, seed=0)
        session.start()
        session.act(session.solve())
        if session.act(session.solve()).reward < 1:
            lost.add(i)
        session.close()
    assert (len(tasks), lost) == (200, {225, 278, 295})


@needs_mariadb
def test_a_server_that_goes_away_fails_the_session_and_no_reward_is_given(mariadb):
    pytest.importorskip("pymysql")
    url, server = mariadb
    store = open_server(url, [PETS])
    server.kill()
    server.wait()
    with pytest.raises(EnvironmentFailed, match="went away"):
        store.execute("SELECT 1")
    with pytest.raises(EnvironmentFailed, match="went away"):
        store.rows("pets")
    store.close()
    with pytest.raises(EnvironmentFailed, match="no connection"):
        open_server(url, [PETS])


@pytest.fixture(scope="module")
def postgres():
    pytest.importorskip("psycopg")
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs or not _has_user("postgres"):
        pytest.skip("no PostgreSQL")
    folder = Path(tempfile.mkdtemp(prefix="ludus-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    shutil.chown(folder, "postgres")  # it refuses to run as root
    initdb, owner = (
        programs[-1],
        {"user": "postgres", "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL},
    )
    subprocess.run([initdb, "-D", folder / "data", "-A", "trust", "-U", "postgres", "--no-sync"], check=True, **owner)
    command = [initdb.with_name("postgres"), "-D", folder / "data", "-k", folder, "-c", "listen_addresses=", "-F"]
    server = subprocess.Popen(command, **owner)
    try:
        ready = [initdb.with_name("pg_isready"), "-q", "-h", folder]
        must_come_up(server, lambda: subprocess.run(ready).returncode == 0)
        yield f"postgresql://postgres@/postgres?host={folder}"
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _has_user(name):
    try:
        return bool(pwd.getpwnam(name))
    except KeyError:
        return False


def roles(url):
    """Dropped last, after their databases."""
    store = open_server(url, [])
    try:
        found = {name for (name,) in store._admin.execute("SELECT rolname FROM pg_roles").fetchall()}
        return {name for name in found if name.startswith("ludus_") and name != store._own}
    finally:
        store.close()


def test_a_killed_process_leaves_no_database_on_postgresql_once_another_has_come(postgres):
    assert_a_killed_process_leaves_nothing(postgres, databases=roles)


def test_a_session_on_postgresql_has_a_database_of_its_own_which_goes_with_it(postgres, monkeypatch):
    monkeypatch.setattr("ludus.worlds.database.servers.QUERY_S", 2.0)
    one, other = open_server(postgres, [PETS]), open_server(postgres, [PETS])
    assert one.execute("SELECT name FROM pets WHERE age > 3") == "name\nTom"
    assert one.execute("INSERT INTO pets VALUES ('Ida', 1)") == "ok"
    assert one.rows("pets") == [("Rex", 3), ("Tom", 5), ("Ida", 1)]
    assert one.execute("SELECT name FROM pets WHERE age > 99") == "(no rows)"
    assert one.execute("DROP TABLE pets").startswith("ok")
    assert one.rows("pets") is None
    assert other.rows("pets") == [("Rex", 3), ("Tom", 5)]
    for query in (
        f"DROP DATABASE {other._own}",
        "selec",
        "SELECT 1; SELECT 2",
        "SELECT '\0'",
        "COPY (SELECT 1) TO PROGRAM 'true'",
    ):
        with pytest.raises(QueryRefused):
            one.execute(query)
    with pytest.raises(QueryRefused, match="takes too long"):
        one.execute("SELECT pg_sleep(20)")
    flood = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x, repeat('x', 1000) FROM n"
    assert one.execute(flood).endswith("[TRUNCATED]")
    assert one.execute("SELECT 1 AS one") == "one\n1"
    one.close()
    names = other._admin.execute("SELECT datname FROM pg_database WHERE datname LIKE 'ludus%'").fetchall()
    assert names == [(other._own,)]
    other.close()


def test_generated_tasks_are_solved_on_postgresql_too(postgres):
    assert_solved_at(postgres)


def test_a_postgresql_session_that_is_cut_off_fails_and_is_not_scored(postgres):
    store = open_server(postgres, [PETS])
    store._admin.execute(f"SELECT pg_terminate_backend({store._session.info.backend_pid})")
    with pytest.raises(EnvironmentFailed, match="went away"):
        store.execute("SELECT 1")
    with pytest.raises(EnvironmentFailed):
        store.rows("pets")
    store.close()


def test_an_unknown_kind_of_server_is_refused():
    with pytest.raises(ConfigError, match="expected mysql://"):
        open_server("oracle://x", [])
