"""A model small enough to train in a test, made once for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("ludus", deadline=None)  # what is found must not hang on how busy the machine is
settings.load_profile("ludus")


@pytest.fixture(scope="session")
def blank_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of width 64, untrained, with a tokenizer trained on what is said in the world `guess`."""
    from ludus.environments import registry
    from ludus.models.loading.tiny import make_tiny
    from tests.e2e.runs import GUESS, corpus_of

    corpus = corpus_of(registry.make("guess", options=GUESS))
    folder = tmp_path_factory.mktemp("models") / "blank"
    return make_tiny(folder, corpus=corpus, seed=3, vocab_size=450, layers=2, hidden=64, context=512)


@pytest.fixture(scope="session")
def small_model(blank_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, after it has watched a mediocre player: it calls the tool, and wins sometimes."""
    import asyncio

    from ludus.launch.clone import sft
    from tests.e2e.runs import make_config

    settings = {"mistakes": 0.5, "num_trajectories": 64, "steps": 40, "batch_tokens": 1024, "lr": 1e-2}
    config = make_config(tmp_path_factory.mktemp("warm"), blank_model, sft=settings)
    return Path(asyncio.run(sft(config))["export"])
