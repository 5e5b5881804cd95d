import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.environments import make
from ludus.errors import ConfigError
from ludus.worlds.textcraft.book import Recipe, make_book, plan
from ludus.worlds.textcraft.folder import members, read_folder
from ludus.worlds.textcraft.world import Textcraft, book_of
from tests.worlds.contract import (
    MEGABYTE,
    assert_splits_are_apart,
    assert_the_solver_wins,
    first_prompts,
    opened,
    read,
    rng,
    say,
)
from tests.worlds.playing import world

RECIPES = Path(os.environ.get("LUDUS_DATA", "../shared/data")) / "textcraft" / "recipes"
needs_recipes = pytest.mark.skipif(not RECIPES.is_dir(), reason="no folder of TextCraft's recipes")
GROUPS = {"planks": ("oak planks", "pine planks")}
BOOK = make_book(
    [
        Recipe("oak planks", 4, (("oak log", 1),)),
        Recipe("stick", 4, (("planks", 2),)),
        Recipe("torch", 4, (("coal", 1), ("stick", 1))),
        Recipe("odd box", 1, (("oak planks", 1), ("planks", 2))),
    ],
    GROUPS,
)


def crafting(goal, **options):
    session = Textcraft(**options)
    session.book = BOOK
    session.setup({"goal": goal, "recipes": [recipe.command for recipe in BOOK.all]}, rng())
    return session


def test_a_torch_is_crafted_by_hand():
    session = crafting("torch")
    for said, answer in [
        ("get 1 oak log", "got 1 oak log"),
        ("craft 4 oak planks using 1 oak log", "crafted 4 oak planks"),
        ("craft 4 stick using 2 oak planks", "crafted 4 stick"),
        ("inventory", "2 oak planks, 4 stick"),
        ("GET 1 coal", "got 1 coal"),
    ]:
        assert session.act(said).text == answer
    end = session.act("craft 4 torch using 1 stick, 1 coal")
    assert (end.reward, end.done, end.metrics["progress"]) == (1.0, True, 1.0)


def test_a_group_takes_any_of_its_members_also_mixed():
    assert BOOK.match("stick", count=4, given={"oak planks": 1, "pine planks": 1})
    assert BOOK.match("odd box", count=1, given={"oak planks": 3})
    assert BOOK.match("odd box", count=1, given={"oak planks": 1, "pine planks": 2})
    assert not BOOK.match("odd box", count=1, given={"pine planks": 3})
    assert not BOOK.match("stick", count=4, given={"oak planks": 2, "coal": 1})
    assert not BOOK.match("stick", count=8, given={"oak planks": 4})


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("get 1 stick", "stick must be crafted"),
        ("get 1 planks", "planks is a group: oak planks, pine planks"),
        ("get 1 torch", "torch must be crafted"),
        ("get 1 dragon", "no dragon"),
        ("get 0 coal", "get at least 1"),
        ("craft 1 dragon using 1 coal", "no recipe for dragon"),
        ("craft 4 stick using 3 oak planks", "no recipe makes 4 stick of exactly that"),
        ("craft 4 stick using oak planks", "say: get 2 NAME, craft 1 NAME using 2 NAME, 1 NAME, or inventory"),
        ("get 99999999 coal", "say: get 2 NAME, craft 1 NAME using 2 NAME, 1 NAME, or inventory"),
        ("", "say: get 2 NAME, craft 1 NAME using 2 NAME, 1 NAME, or inventory"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(said, answer):
    session = crafting("torch")
    reply = session.act(said)
    assert (reply.text, reply.invalid, reply.reward, reply.done) == (answer, True, 0.0, False)
    assert session.act("inventory").text == "nothing"


def test_what_is_missing_is_named():
    session = crafting("torch")
    session.act("get 1 oak log")
    reply = session.act("craft 4 torch using 1 stick, 1 coal")
    assert (reply.text, reply.reward) == ("missing 1 coal, 1 stick", 0.0)


@given(st.text(alphabet="get craft using 0123456789,oakplnsti\n\0'é", max_size=80))
@settings(max_examples=200, deadline=None)
def test_any_text_gets_an_answer(text):
    assert crafting("torch").act(text).text


def test_a_megabyte_is_refused_in_a_line():
    session = opened(world("textcraft"))
    for text in (MEGABYTE, "get 1 " + MEGABYTE, "craft 1 a using " + "1 a, " * 200_000):
        seen = say(session, text)
        assert seen.invalid
        assert len(read(seen)) < 100


def test_nothing_is_needed_to_make_itself():
    circle = [
        Recipe("a", 1, (("b", 1),)),
        Recipe("b", 1, (("c", 1),)),
        Recipe("c", 1, (("a", 1),)),
        Recipe("d", 1, (("d", 2),)),
    ]
    assert sorted(make_book(circle, {}).recipes) == ["a", "b"]


def test_goals_have_depths_one_to_four_and_the_plan_fits_the_turns():
    environment, book = world("textcraft"), book_of("")
    for split in ("train", "test"):
        tasks = environment.tasks(split)
        assert {task.data["category"] for task in tasks} == {f"depth {n}" for n in range(1, 5)}
        assert all(len(plan(book, task.data["goal"], have={}).commands) <= 30 for task in tasks)


def test_needed_recipes_stand_among_distractors():
    task = world("textcraft").tasks("test")[3].data
    needed = {recipe.command for recipe in plan(book_of(""), task["goal"], have={}).recipes}
    assert needed < set(task["recipes"])
    assert len(task["recipes"]) == len(set(task["recipes"])) == len(needed) + 10


def test_the_prompt_holds_recipes_and_not_the_way():
    for task, prompt in first_prompts(world("textcraft"), count=50):
        ways = plan(book_of(""), task.data["goal"], have={}).commands
        assert not any(command in prompt for command in ways if command.startswith("get"))


# ------------------------------------------------------------------------------------------------ a folder of recipes


@needs_recipes
def test_the_860_files_become_a_book_with_solvable_goals():
    environment = world("textcraft", recipes=str(RECIPES))
    assert sum(len(environment.tasks(split)) for split in ("train", "dev", "test")) > 500
    assert_splits_are_apart(environment, by=lambda data: data["goal"])
    assert_the_solver_wins(environment, count=400)


@needs_recipes
def test_groups_of_the_folder_have_the_games_members():
    book = read_folder(RECIPES)
    assert book.groups["oak logs"] == ("oak log", "stripped oak log")
    assert "dark oak planks" in book.groups["planks"]
    assert all(item in book.materials or item in book.recipes for group in book.groups.values() for item in group)


def test_members_are_told_by_their_names():
    items = ["coal", "oak log", "dark oak log", "stripped oak log", "red wool"]
    assert members("oak logs", items) == ("oak log", "stripped oak log")
    assert members("wool", items) == ("red wool",)
    assert members("dragons", items) == ()


def test_a_folder_without_recipes_or_with_a_broken_one_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no \*\.json files"):
        make("textcraft", options={"recipes": str(tmp_path)}).tasks("train")
    (tmp_path / "half.json").write_text('{"type": "minecraft:crafting_shaped", "patt')
    with pytest.raises(ConfigError, match=r"half\.json.* cannot be read as a recipe"):
        make("textcraft", options={"recipes": str(tmp_path)}).tasks("train")
    (tmp_path / "half.json").write_text(json.dumps({"type": "minecraft:crafting_shaped", "pattern": ["#"]}))
    with pytest.raises(ConfigError, match="cannot be read as a recipe"):
        make("textcraft", options={"recipes": str(tmp_path)}).tasks("train")
