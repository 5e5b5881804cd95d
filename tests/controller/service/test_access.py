import os
from datetime import UTC, datetime

import pytest

from ludus.controller.service.access import AccessTokens, is_loopback
from ludus.errors import ConfigError, ControllerFailed

NOON = datetime(2027, 1, 31, 12, tzinfo=UTC)


def tokens_of(tmp_path, text):
    (tmp_path / "tokens").write_text(text)
    return AccessTokens(file=str(tmp_path / "tokens"))


def test_a_token_names_its_client(tmp_path):
    tokens = tokens_of(tmp_path, "# who may call\nann abc\n\nbob def 2027-02-01  # until then\n")
    assert tokens.client("Bearer abc", now=NOON) == "ann"
    assert tokens.client("bearer def", now=NOON) == "bob"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", "abc", "Bearer wrong", "Bearer abc x"])
def test_anything_else_is_401(tmp_path, header):
    tokens = tokens_of(tmp_path, "ann abc\n")
    with pytest.raises(ControllerFailed) as failure:
        tokens.client(header)
    assert failure.value.status == 401
    assert "abc" not in str(failure.value)


@pytest.mark.parametrize(
    "expires", ["2027-01-31", "2027-01-31T12:00+00:00", "2027-01-31T13:00+01:00", "2020-01-01T00:00"]
)
def test_an_expired_token_is_401_and_says_since_when(tmp_path, expires):
    tokens = tokens_of(tmp_path, f"ann abc {expires}\n")
    with pytest.raises(ControllerFailed, match="expired at") as failure:
        tokens.client("Bearer abc", now=NOON)
    assert failure.value.status == 401


def test_deleting_a_line_revokes_its_token_and_adding_one_grants(tmp_path):
    tokens = tokens_of(tmp_path, "ann abc\nbob def\n")
    assert tokens.client("Bearer abc") == "ann"
    (tmp_path / "tokens").write_text("bob def\ncat ghi\n")
    with pytest.raises(ControllerFailed, match="revoked"):
        tokens.client("Bearer abc")
    assert tokens.client("Bearer ghi") == "cat"


@pytest.mark.parametrize("text", [None, "ann\n"])
def test_a_file_that_became_unreadable_lets_nobody_in(tmp_path, text):
    tokens = tokens_of(tmp_path, "ann abc\n")
    file = tmp_path / "tokens"
    file.unlink() if text is None else file.write_text(text)
    for _ in range(2):
        with pytest.raises((ConfigError, ControllerFailed)):
            tokens.client("Bearer abc")


@pytest.mark.parametrize(
    ("text", "message"),
    [("ann\n", "line 1 has 1 words"), ("a b c d\n", "4 words"), ("# x\nann abc soon\n", "line 2: 'soon'")],
)
def test_a_bad_line_is_named(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        tokens_of(tmp_path, text)


def test_without_a_file_the_environment_has_the_one_token():
    tokens = AccessTokens(environment={"LUDUS_TOKEN": "abc"})
    assert tokens.client("Bearer abc") == "default"
    with pytest.raises(ControllerFailed):
        tokens.client(None)


def test_without_any_token_everyone_on_this_machine_is_local_and_nobody_else_is_listened_to():
    tokens = AccessTokens(environment={})
    assert tokens.client(None) == "local"
    tokens.check_host("127.0.0.1")
    with pytest.raises(ConfigError, match="without access tokens"):
        tokens.check_host("0.0.0.0")
    AccessTokens(environment={"LUDUS_TOKEN": "abc"}).check_host("0.0.0.0")


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match="cannot be read"):
        AccessTokens(file=os.path.join("no", "such", "file"))


def test_what_is_loopback():
    assert all(map(is_loopback, ["127.0.0.1", "127.8.8.8", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "example.org", ""]))
