"""An advantage, a loss, a filter and a reward shaper from a module outside of the package, without a fork."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from ludus.algorithms import make_algorithm
from ludus.config import AlgorithmConfig, dump_config, load_config, parse_config
from ludus.errors import ConfigError, TrainerFailed
from ludus.launch import train as local
from tests.algorithms.examples import make_group
from tests.algorithms.problems import loss_of
from tests.e2e.runs import make_config, run

MODULE = """
from dataclasses import replace
import numpy as np
from pydantic import BaseModel, Field
from ludus.algorithms import Tokens, advantage
from ludus.config import Section
from ludus.types import Group


class Margin(Section):
    margin: float = Field(default=0.5, ge=0)


class Strength(BaseModel):
    strength: float = 1.0


def estimator(group: Group, options: Margin):
    return [trajectory.reward - options.margin for trajectory in group.trajectories]


@advantage(compares=True, filter="zero_variance")
def compared(group, options):
    return [np.full(len(trajectory.turns), 2.0) for trajectory in group.trajectories]


@advantage(per="token", critics=("head",))
def asks(group, options, values):
    return values


def loss(tokens: Tokens, options: Strength):
    return -options.strength * tokens.advantages * tokens.logprobs


def first(groups, options):
    return groups[:1]


def doubled(group, options):
    turns = lambda t: tuple(replace(k, observation=replace(k.observation, reward=2 * k.observation.reward)) for k in t.turns)
    return replace(group, trajectories=tuple(replace(t, turns=turns(t)) for t in group.trajectories))


def short(group, options):
    return [0.0]


def long(group, options):
    return [np.zeros(9) for _ in group.trajectories]


def unary(group):
    return []


number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "of_an_author.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(local, "write_report", lambda folder: folder.report_file)
    yield
    for name in ("of_an_author", "my_methods"):
        sys.modules.pop(name, None)


def advantages(batch):
    return [s.advantages[s.sampled].tolist() for s in batch.sequences]


def test_an_estimator_has_its_own_options_and_the_resolved_run_reads_back():
    config = load_config(None, ["algorithm.advantage=of_an_author:estimator", "algorithm.margin=0.25"])
    assert (config.algorithm.margin, config.algorithm.filter) == (0.25, "none")
    assert parse_config(tomllib.loads(dump_config(config))) == config
    batch = make_algorithm(config.algorithm).batch([make_group([0.0, 1.0])])
    assert advantages(batch) == [[-0.25, -0.25], [0.75, 0.75]]


def test_the_example_of_the_docs_works_and_is_short(tmp_path):
    page = Path(__file__).parents[2].joinpath("docs", "algorithms.md").read_text()
    code, toml = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("python", "toml"))
    assert len(code.splitlines()) <= 15
    (tmp_path / "my_methods.py").write_text(code)
    config = parse_config(tomllib.loads(toml)).algorithm
    batch = make_algorithm(config).batch([make_group([0.0, 1.0])])
    assert advantages(batch) == [pytest.approx([-0.1, -0.1]), pytest.approx([0.9, 0.9])]
    assert loss_of(make_algorithm(config), batch.sequences, policy=torch.linspace(-2.0, -0.5, 12)).isfinite()


def test_a_decorator_says_what_an_estimator_needs():
    compared = AlgorithmConfig(advantage="of_an_author:compared")
    assert compared.filter == "zero_variance"
    assert advantages(make_algorithm(compared).batch([make_group([0.0, 1.0])])) == [[2.0, 2.0]] * 2
    with pytest.raises(ConfigError, match="compares attempts with each other"):
        load_config(
            None,
            ["algorithm.advantage=of_an_author:compared", "rollout.group_size=1", "rollout.min_group_size=1"],
        )
    with pytest.raises(ConfigError, match="needs a critic, and there is none"):
        load_config(None, ["algorithm.advantage=of_an_author:asks"])


def test_a_loss_is_added_up_with_the_batchs_weights():
    sequences = make_algorithm(AlgorithmConfig(advantage="reward")).batch([make_group([0.0, 1.0])]).sequences
    policy = torch.linspace(-2.0, -0.5, 12)
    plain = make_algorithm(AlgorithmConfig(loss="reinforce", importance_cap=0.0))
    own = make_algorithm(AlgorithmConfig(loss="of_an_author:loss", strength=3.0, importance_cap=0.0))
    assert loss_of(own, sequences, policy=policy) == pytest.approx(3 * loss_of(plain, sequences, policy=policy))


def test_a_filter_and_a_reward_shaper_are_used():
    config = AlgorithmConfig(advantage="reward", filter="of_an_author:first", rewards=["of_an_author:doubled"])
    batch = make_algorithm(config).batch([make_group([0.0, 1.0]), make_group([0.0, 1.0])])
    assert advantages(batch) == [[0.0, 0.0], [2.0, 2.0]]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["advantage=of_an_author:estimater"], "no 'estimater' in it. Did you mean 'estimator'"),
        (["advantage=of_an_author:number"], r"is 3; expected a function\(group, options\)"),
        (["advantage=of_an_author:unary"], r"called as function\(group, options\), but its signature is \(group\)"),
        (["advantage=estimator"], "is 'estimator', which is unknown.*Your own: module:name"),
        (["advantage=of_an_author:estimator", "margn=1"], "unknown key 'algorithm.margn'. Did you mean 'margin'"),
        (["advantage=of_an_author:estimator", "margin=-1"], "algorithm.margin: .*greater than or equal to 0"),
        (["aggregate=of_an_author:first"], "algorithm.aggregate is 'of_an_author:first', which is unknown"),
    ],
)
def test_what_is_no_method_is_refused_at_the_start(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, [f"algorithm.{override}" for override in overrides])


@pytest.mark.parametrize(
    ("name", "message"), [("short", "1 estimates for a group of 2"), ("long", "9 numbers.*one per turn")]
)
def test_an_estimate_of_the_wrong_shape_is_named(name, message):
    with pytest.raises(TrainerFailed, match=message):
        make_algorithm(AlgorithmConfig(advantage=f"of_an_author:{name}")).batch([make_group([0.0, 1.0])])


def test_a_run_trains_with_an_advantage_and_a_loss_from_outside(small_model, tmp_path):
    own = {"advantage": "of_an_author:estimator", "margin": 0.1, "loss": "of_an_author:loss", "strength": 2.0}
    folder = run(make_config(tmp_path / "runs", small_model, algorithm=own, pipeline={"steps": 2}))
    lines = folder.metrics()
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["optimizer/grad_norm"] > 0 for line in lines)
    assert load_config(folder.path / "config.toml").algorithm.margin == 0.1
