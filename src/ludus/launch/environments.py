"""One client for all environments of a run. A request that their place cannot honour is refused."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from ludus.config import HERE, WORKERS, RunConfig
from ludus.controller.client.client import Client
from ludus.controller.client.local import LocalClient
from ludus.controller.client.mixed import MixedClient
from ludus.controller.client.remote import RemoteClient
from ludus.controller.records import Described
from ludus.environments import registry
from ludus.environments.environment import Environment
from ludus.environments.needs import KINDS, demand
from ludus.errors import ConfigError, nearest
from ludus.launch.placement.workers import WorkersClient
from ludus.sandboxes.provider import Sandboxes

SPARE_S = 60.0
"""What a worker allows a session beyond rollout.session_timeout_s, which the run keeps itself."""


async def make_client(config: RunConfig, *, folder: Path, workers: tuple[str, str] | None = None) -> MixedClient:
    """Return a client whose close also ends what was started for it. Logs go to `folder`.
    `workers`: the address of workers that another process of the run has started."""
    _require_some(config)
    places: dict[str, Client] = {}
    async with AsyncExitStack() as undo:
        for place in dict.fromkeys(section.at for section in config.environments.values()):
            places[place] = await _client_at(place, config, folder=folder, workers=workers)
            undo.push_async_callback(places[place].close)
        for name, section in config.environments.items():
            _check(name, config, offered=places[section.at].environments())
        undo.pop_all()
    return MixedClient({name: places[section.at] for name, section in config.environments.items()})


def make_environments(config: RunConfig, *, at: Collection[str] = (HERE,)) -> dict[str, Environment]:
    """Return the environments at these places."""
    _require_some(config)
    made = {
        name: registry.make(name, source=section.source, options=section.options)
        for name, section in config.environments.items()
        if section.at in at
    }
    for name, environment in made.items():
        demand(environment, config.environments[name].sandbox, image=config.environments[name].image)
    return made


def _require_some(config: RunConfig) -> None:
    if not config.environments:
        known = ", ".join(registry.names())
        raise ConfigError(f"the run has no environments; add a section such as [environments.guess]. Known: {known}.")


def read_token(config: RunConfig) -> str:
    """Return the access token for controllers at a URL, which is never in a run file."""
    file = config.controller.token_file
    if not file:
        return os.environ.get("LUDUS_TOKEN", "")
    try:
        token = Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"controller.token_file {file!r} cannot be read: {error}") from None
    if not token or len(token.split()) != 1:
        raise ConfigError(f"controller.token_file {file!r} holds {len(token.split())} words; expected one token")
    return token


def address_of_workers(client: Client) -> tuple[str, str] | None:
    """Return URL and access token of the run's own workers, for another process of the run."""
    clients = client.clients if isinstance(client, MixedClient) else ()
    return next((each.address for each in clients if isinstance(each, WorkersClient)), None)


async def _client_at(place: str, config: RunConfig, *, folder: Path, workers: tuple[str, str] | None) -> Client:
    if place == HERE:
        client = LocalClient(make_environments(config).values(), sandboxes=Sandboxes(run=config.name))
        await client.prepare()
        return client
    settings: dict[str, Any] = {
        "wait_s": config.controller.wait_s,
        "session_timeout_s": config.rollout.session_timeout_s + SPARE_S,
    }
    if place == WORKERS and workers is None:
        return await WorkersClient.start(config, folder=folder / "workers", **settings)
    url, token = workers if place == WORKERS and workers else (place, read_token(config))
    return await RemoteClient.connect(url, token=token, **settings)


def _check(name: str, config: RunConfig, *, offered: Mapping[str, Described]) -> None:
    """Check that the workers offer the environment with the run file's options and sandbox."""
    section = config.environments[name]
    if name not in offered:
        known = ", ".join(sorted(offered)) or "none"
        raise ConfigError(f"no environment {name!r} at {section.at}.{nearest(name, offered)} On offer there: {known}.")
    if KINDS.index(section.sandbox) > KINDS.index(offered[name].sandbox):
        raise ConfigError(
            f"environments.{name}.sandbox is {section.sandbox!r}, but at {section.at} it runs in {offered[name].sandbox!r}; "
            "workers that are started with this run file (`ludus serve worker --run FILE`) give it more"
        )
    has = offered[name].options
    for key, value in section.options.items() if section.at != HERE else ():
        where = f"environments.{name}.options.{key}"
        if key not in has:
            near, known = nearest(key, has), ", ".join(sorted(has)) or "none"
            raise ConfigError(f"{where}: the workers at {section.at} have no such option.{near} Theirs: {known}.")
        if msgspec.to_builtins(value) != has[key]:
            raise ConfigError(
                f"{where} is {value!r}, but the workers at {section.at} were started with {has[key]!r}; "
                "change the run file, or start them with it"
            )
