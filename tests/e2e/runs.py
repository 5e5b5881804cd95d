"""Small runs for tests: the world `guess` with few numbers, and a model that trains in milliseconds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ludus.config import RunConfig, parse_config
from ludus.controller.client.local import LocalClient
from ludus.environments.environment import Environment
from ludus.launch.corpus import corpus
from ludus.launch.train import train
from ludus.store.run_folder import RunFolder

GUESS = {"numbers": 3, "largest": 5, "max_turns": 2}
FAKE = "ludus.environments.fake:FakeEnvironment"


def corpus_of(environment: Environment) -> list[str]:
    async def main() -> list[str]:
        client = LocalClient([environment])
        try:
            return [text async for text in corpus(client, client.environments())]
        finally:
            await client.close()

    return asyncio.run(main())


def make_config(folder: Path, model_folder: Path | str, /, **sections: Any) -> RunConfig:
    """A run of three synchronous steps; a section such as pipeline={"steps": 5} changes what it names."""
    data: dict[str, Any] = {
        "name": "r",
        "model": {"name": str(model_folder), "device": "cpu"},
        "environments": {"guess": {"options": GUESS}},
        # GRPO would wait for groups that differ in reward; an untrained model has few
        "algorithm": {"filter": "none"},
        "rollout": {"group_size": 2, "max_turn_tokens": 6, "max_tokens": 256},
        "pipeline": {"steps": 3, "groups_per_step": 2, "max_staleness": 0},
        "store": {"folder": str(folder), "tensorboard": False, "checkpoint_every": 0},
        "evaluation": {"num_tasks": 4},
    }
    for name, section in sections.items():
        whole = name == "environments" or not isinstance(section, dict)
        data[name] = section if whole else {**data.get(name, {}), **section}
    return parse_config(data)


def run(config: RunConfig, **options: Any) -> RunFolder:
    asyncio.run(train(config, **options))
    return RunFolder(config.folder)
