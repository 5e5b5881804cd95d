"""`ludus collect`: what solvers and outside models do, stored, loaded by `datasets`, and cloned by `ludus sft`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from ludus.config import EngineConfig, parse_config
from ludus.errors import ConfigError
from ludus.launch.clone import sft
from ludus.launch.collect import collect, plan_orders
from ludus.store.dataset import write_dataset
from ludus.store.run_folder import RunFolder
from ludus.types import Task
from tests.e2e.runs import GUESS, make_config
from tests.launch.chat_stub import ChatStub, guesses

SFT = {"num_trajectories": 12, "steps": 2, "batch_tokens": 512}
TWO = {"guess": {"options": GUESS}, "kv_store": {}}


def gather(config, **options):
    return asyncio.run(collect(config, **{"solver": True, **options}))


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    config = make_config(tmp_path_factory.mktemp("c"), "unused", environments=TWO, sft={**SFT, "mistakes": 0.3})
    return config, gather(config)


def test_solvers_are_collected_in_the_stores_format_without_any_model(collected):
    config, result = collected
    assert (result["trajectories"], result["unscored"], result["player"]) == (12, 0, "solver")
    stored = list(RunFolder(config.folder).read_trajectories())
    assert {each.trajectory.task.environment for each in stored} == {"guess", "kv_store"}
    assert {each.split for each in stored} == {"train"}


def test_the_knob_for_mistakes_is_felt(tmp_path, collected):
    perfect = gather(make_config(tmp_path, "unused", environments=TWO, sft=SFT))
    assert perfect["success"] == 1.0 > collected[1]["success"]


def test_sft_clones_what_was_collected_from_the_folder_and_from_a_file(collected, blank_model, tmp_path):
    config, _ = collected
    for number, source in enumerate((config.folder, config.folder / "trajectories" / "00000.jsonl")):
        cloning = make_config(
            tmp_path, blank_model, name=f"w{number}", environments=TWO, sft={**SFT, "trajectories": str(source)}
        )
        assert asyncio.run(sft(cloning))["trajectories"] == 12


def test_an_outside_models_text_is_collected_and_cloned(blank_model, tmp_path):
    with ChatStub(guesses) as stub:
        outside = make_config(tmp_path, "tiny", model={"device": "auto"}, name="o", sft=SFT)
        outside = outside.model_copy(update={"engine": EngineConfig(kind="chat", url=stub.url)})
        result = gather(outside, solver=False)
    assert (result["player"], result["words"], result["success"]) == ("stub", "text", 1.0)
    cloning = make_config(tmp_path, blank_model, name="w", sft={**SFT, "trajectories": "o"})
    assert asyncio.run(sft(cloning))["trajectories"] == 12


def test_the_dataset_is_loaded_by_datasets_with_one_schema_for_all_worlds(collected, tmp_path):
    datasets = pytest.importorskip("datasets")
    config, _ = collected
    folder = write_dataset(tmp_path / "set", RunFolder(config.folder).read_trajectories())
    loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))["train"]
    assert len(loaded) == 12
    row = next(row for row in loaded if row["environment"] == "kv_store")
    assert [message["role"] for message in row["messages"][:4]] == ["system", "user", "assistant", "tool"]
    call = row["messages"][2]["tool_calls"][0]
    assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert row["messages"][3]["tool_call_id"] == call["id"] != ""
    assert json.loads(row["tools"])[0]["type"] == "function"


def test_a_split_that_would_leave_the_datasets_folder_is_refused(collected, tmp_path):
    stored = next(iter(RunFolder(collected[0].folder).read_trajectories()))
    with pytest.raises(ConfigError, match="cannot be a file name"):
        write_dataset(tmp_path / "set", [replace(stored, split="../outside")])
    assert not (tmp_path / "outside.jsonl").exists()


def test_a_collection_goes_on_and_another_one_is_not_mixed_into_it(tmp_path):
    gather(make_config(tmp_path, "unused", sft={**SFT, "num_trajectories": 4}))
    assert gather(make_config(tmp_path, "unused", sft=SFT))["trajectories"] == 12
    stored = list(RunFolder(tmp_path / "r").read_trajectories())
    assert len({each.trajectory.id for each in stored}) == len(stored) == 12
    with pytest.raises(ConfigError, match=r"sft.mistakes is 0.0 there and 0.5 here"):
        gather(make_config(tmp_path, "unused", sft={**SFT, "mistakes": 0.5}))


def test_few_sessions_are_divided_so_that_every_environment_plays():
    config = parse_config({"environments": {"guess": {"weight": 9}, "wordle": {}, "maze": {}}})
    tasks = {name: [Task(f"{name}/train/{index}", name, "train") for index in range(2)] for name in config.environments}
    plans = [plan_orders(tasks, config=config, num=2, prefix="p", number=number) for number in range(2)]
    assert [order.id for order in plans[0]] == ["p-guess-0", "p-guess-1", "p-wordle-0", "p-maze-0"]
    assert [attempt.task.id for attempt in plans[1][-2:]] == ["wordle/train/1", "maze/train/1"], "goes on"


def test_trajectories_of_held_out_tasks_alone_are_not_cloned(blank_model, tmp_path):
    config = make_config(tmp_path, blank_model, name="held", sft=SFT)
    gather(config, split="test")
    again = make_config(tmp_path, blank_model, name="clone", sft={**SFT, "trajectories": str(config.folder)})
    with pytest.raises(ConfigError, match="of split test alone, which are held out"):
        asyncio.run(sft(again))
