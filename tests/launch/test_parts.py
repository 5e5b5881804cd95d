"""A run file becomes parts: what an author's code does at the start ends the run by name, or does not hold it up."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ludus.errors import EnvironmentFailed
from ludus.launch import context as parts
from tests.e2e.runs import FAKE, make_config


class Hanging:
    async def tasks(self, environment, split):
        await asyncio.sleep(3600)


def test_tasks_that_are_never_listed_are_named_while_they_are_waited_for_and_end_the_run(monkeypatch, caplog):
    monkeypatch.setattr(parts, "PATIENCE_S", 0.01)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(EnvironmentFailed, match=r"'slow': tasks\('train'\) did not.*0.2 s"),
    ):
        asyncio.run(parts._tasks(Hanging(), "slow", split="train", limit_s=0.2))
    assert "'slow': tasks('train') takes more than 0.01 s" in caplog.text


def test_a_first_message_that_does_not_come_is_told_with_its_limit(tmp_path, small_model):
    broken = {"fake": {"source": FAKE, "options": {"fault": "hang", "fault_in": "start", "blocking": False}}}
    config = make_config(tmp_path, small_model, environments=broken, rollout={"turn_timeout_s": 0.05})
    with pytest.raises(EnvironmentFailed, match=r"did not answer within 0.05 s \(rollout.turn_timeout_s\)"):
        asyncio.run(parts.make_run_context(config, folder=tmp_path))


def test_an_observation_without_end_does_not_keep_tinys_tokenizer_busy(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(parts, "make_tiny", lambda folder, *, corpus, seed: given.extend(corpus) or 1 / 0)
    long = {"fake": {"source": FAKE, "options": {"fault": "megabyte"}}}
    config = make_config(tmp_path, "tiny", environments=long, rollout={"max_observation_chars": 1000})
    with pytest.raises(ZeroDivisionError):
        asyncio.run(parts.make_model_context(config, folder=tmp_path))
    assert max(map(len, given)) == 1000
