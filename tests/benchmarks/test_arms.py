"""The learning benchmarks: budgets are kept, seeds are paired, and a line becomes a table. Whether a method helps is no test's business."""

import random
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from ludus.checks import check
from ludus.environments import make

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def arms(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import arms

    return arms


def small_case(arms: ModuleType):
    return arms.Case(
        name="small",
        question="?",
        environments={"corridor": {"options": {"length": 4, "start": 2}}},
        arms={"plain": {}, "std": {"algorithm": {"normalise": "none"}}},
        budgets=(8,),
        outcomes=("success", "states"),
        sections={
            "rollout": {"group_size": 2},
            "pipeline": {"groups_per_step": 2},
            "algorithm": {"filter": "none"},
            "evaluation": {"num_tasks": 2},
        },
        warm={"num_trajectories": 32, "steps": 20, "batch_tokens": 512},
    )


def test_a_run_plays_exactly_its_budget_trains_all_of_it_and_changes_nothing_for_good(arms, tmp_path):
    from ludus.launch import train as local
    from ludus.pipeline import loop

    settings = local.write_report, loop.MAX_EMPTY_BATCHES
    case = small_case(arms)
    model, before = arms._warmed(case, folder=tmp_path / "warm")
    result = arms.run(case, case.arms["plain"], seed=1, budget=8, model=model)
    assert (result["trajectories"], result["steps"]) == (8, 2)
    assert result["states"] >= 2
    assert 0 <= result["success"] <= 1
    assert before.keys() == {"success", "success/corridor"}
    assert (local.write_report, loop.MAX_EMPTY_BATCHES) == settings


def test_the_difference_pairs_seeds_and_the_last_arm_gives_the_ratio(arms):
    case = replace(small_case(arms), outcomes=("success",))
    values = {"plain": (0.2, 0.4, 0.6), "std": (0.3, 0.5, 0.7)}
    spent = {"trajectories": 8, "turns": 20, "steps": 2, "seconds": 1.0}
    found = {
        (arm, 8, seed): {"success": value, **spent} for arm, own in values.items() for seed, value in enumerate(own)
    }
    line = arms.line_of(case, found, before={"success": 0.1})
    told = line["outcomes"]["success after 8 trajectories"]
    assert told["arms"]["plain"]["mean"] == 0.4
    assert told["arms"]["plain"]["low"] < 0  # seeds differ widely ...
    assert told["against"]["std"]["difference"] == {"mean": 0.1, "low": 0.1, "high": 0.1}  # ... the arms do not
    assert line["ratio"] == 1.25
    assert "| std | 0.50 [0.00, 1.00] | +0.10 [+0.10, +0.10] |" in arms.table([line])


def test_a_case_whose_preset_is_missing_is_skipped_and_a_known_one_gives_its_arm_the_method(arms):
    case = small_case(arms)
    assert arms.ready(replace(case, presets={"std": "nobodys"}))[0] is None
    whole, missing = arms.ready(replace(case, presets={"std": "starpo-s"}))
    assert not missing
    assert whole.arms["std"]["algorithm"]["filter"] == "top_share"
    assert whole.arms["plain"] == {}
    assert "not run: no preset" in arms.table([{"case": "small", "skipped": "no preset 'nobodys'"}])


def test_every_arm_of_every_case_is_a_run_that_is_accepted(arms, tmp_path):
    import learning
    import multitask

    for case in (*learning.CASES, *multitask.CASES):
        whole, _ = arms.ready(case)
        for sections in whole.arms.values():
            config = arms.run_config(whole, folder=tmp_path, model="tiny", name="x", seed=1, sections=sections)
            assert config.environments, "a run plays something"


WORLDS = [("Learnt", "learning.py"), ("Anywhere", "learning.py"), ("Loud", "multitask.py")]


@pytest.mark.parametrize(("name", "file"), WORLDS)
def test_the_worlds_of_the_benchmarks_are_sound(name, file, arms):
    report = check(make(name.lower(), source=f"{BENCHMARKS / file}:{name}"))
    assert not [finding for finding in report.findings if finding.severity == "error"], str(report)


@pytest.mark.parametrize(("known", "ends"), [((1.0,) * 4, "treasure"), ((0.0,) * 4, "coin")])
def test_a_player_to_clone_may_be_mistaken_and_the_corridor_stays_the_same(known, ends, arms):
    from learning import Learnt

    session, rng = Learnt(length=8, start=4, known=known), random.Random(0)
    session.setup(session.tasks("train")[0], rng)
    replies = [session.act(session.solve()) for _ in range(4)]
    assert (replies[-1].text, replies[-1].done) == (ends, True)


def test_what_means_left_in_the_quiet_world_means_right_in_the_loud_one(arms):
    from multitask import Loud, Quiet

    for task in Quiet().tasks("train")[:8]:
        sides = []
        for world in (Quiet(), Loud()):
            world.setup(task, random.Random(0))
            sides.append(world.solve())
        assert sorted(sides) == ["left", "right"]
