"""Where a run's environments live: what a place cannot give is refused at the start, and no secret is part of a run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ludus.config import RunConfig, dump_config, parse_config
from ludus.controller.client.remote import RemoteClient
from ludus.errors import ConfigError, ControllerFailed
from ludus.launch.environments import make_client, make_environments, read_token
from ludus.types import Action
from tests.controller.echo import plane

FAKE = "ludus.environments.fake:FakeEnvironment"


def config_of(environments: dict[str, Any], **sections: Any) -> RunConfig:
    return parse_config({"environments": environments, **sections})


def at_a_controller(tmp_path, *, name: str = "echo", token: str = "", **section: Any):
    """One session of each environment of a run that has one at a controller and one here."""

    async def main():
        async with plane() as (controller, worker):
            controller.token = token
            here = {"fake": {"source": FAKE, "options": {"turns": 1}}}
            config = config_of({name: {"at": controller.url, **section}, **here})
            client = await make_client(config, folder=tmp_path)
            try:
                described = client.environments()
                for name_ in described:
                    session = await client.open((await client.tasks(name_, "train"))[0], seed=0)
                    await session.start()
                    await session.act(Action("x"))
                    await session.close()
                return described, worker, config
            finally:
                await client.close()

    return asyncio.run(main())


def test_environments_here_and_at_a_controller_are_played_side_by_side(tmp_path):
    described, worker, _ = at_a_controller(tmp_path, options={"loud": True})
    assert {name: each.max_turns for name, each in described.items()} == {"echo": 3, "fake": 1}
    assert len(worker.calls("act")) == 1


def test_options_that_the_workers_do_not_have_are_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"environments.echo.options.loud is False, but the workers at http.* started with True"
    ):
        at_a_controller(tmp_path, options={"loud": False})
    with pytest.raises(ConfigError, match=r"options.loudd: .* no such option. Did you mean 'loud'"):
        at_a_controller(tmp_path, options={"loudd": True})


def test_an_environment_that_no_worker_offers_is_refused_with_what_is_there(tmp_path):
    with pytest.raises(ConfigError, match=r"no environment 'ecko' at http.*Did you mean 'echo'.*On offer there: echo"):
        at_a_controller(tmp_path, name="ecko")


def test_a_controller_that_is_not_there_is_a_named_failure(tmp_path, monkeypatch):
    monkeypatch.setitem(RemoteClient.__init__.__kwdefaults__, "patience_s", 0.1)
    config = config_of({"guess": {"at": "http://127.0.0.1:9"}})
    with pytest.raises(ControllerFailed, match=r"http://127.0.0.1:9 cannot be reached"):
        asyncio.run(make_client(config, folder=tmp_path))


def test_the_token_comes_from_the_environment_or_a_file_and_is_never_part_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("LUDUS_TOKEN", "secret-1")
    _, _, config = at_a_controller(tmp_path, token="secret-1")
    assert "secret" not in dump_config(config)
    file = tmp_path / "token"
    file.write_text("secret-2\n")
    controller = {"token_file": str(file)}
    config = config_of({"echo": {"at": "http://127.0.0.1:9"}}, controller=controller)
    assert read_token(config) == "secret-2"
    assert "secret" not in dump_config(config)
    file.write_text("two words")
    with pytest.raises(ConfigError, match="holds 2 words; expected one token"):
        read_token(config)
    file.unlink()
    with pytest.raises(ConfigError, match=r"token_file .* cannot be read"):
        read_token(config)


def test_a_run_without_environments_is_told_which_there_are(tmp_path):
    for attempt in (
        lambda: asyncio.run(make_client(parse_config({}), folder=tmp_path)),
        lambda: make_environments(parse_config({})),
    ):
        with pytest.raises(ConfigError, match=r"no environments.*Known: frozen_lake, guess"):
            attempt()
