import json
from dataclasses import replace

import msgspec
import pytest

from ludus.environments import make
from ludus.errors import ConfigError
from ludus.types import Action, ToolCall
from ludus.worlds.webshop.catalogue import Goal, Product
from ludus.worlds.webshop.reward import judge, type_reward
from ludus.worlds.webshop.world import BACK, BUY, NEXT, PREVIOUS, catalogue_of
from tests.worlds.contract import MEGABYTE, assert_splits_are_apart, call, first_prompts, opened, read
from tests.worlds.playing import play, won, world

SHOE = Product(
    asin="B01",
    title="Arco soft running shoes",
    category=("clothing", "shoes", "running shoes"),
    query="running shoes",
    price=49.5,
    attributes=("machine washable", "quick drying"),
    options={"color": ("red", "navy"), "size": ("large", "x-large")},
    description="For every day.",
    features=("Made of leather",),
)
GOAL = Goal("B01", "find shoes", ("machine washable", "quick drying"), ("red", "large"), 60.0)


def reward(bought=SHOE, chosen=None, goal=GOAL):
    return judge(bought, chosen={"color": "red", "size": "large"} if chosen is None else chosen, goal=goal, target=SHOE)


# ------------------------------------------------------------------------------------------------ the reward


def test_the_right_product_with_the_right_options_pays_one():
    judged = reward()
    assert judged.total == 1.0
    assert judged.metrics()["success"] == 1.0


@pytest.mark.parametrize(
    ("judged", "total"),
    [
        (lambda: reward(chosen={}), 3 / 5),
        (lambda: reward(chosen={"color": "red", "size": "x-large"}), 4 / 5),
        (lambda: reward(replace(SHOE, price=60.01)), 4 / 5),
        (lambda: reward(replace(SHOE, attributes=())), 3 / 5),
        (lambda: reward(replace(SHOE, attributes=(), description="It is Machine Washable.")), 4 / 5),
        (lambda: reward(replace(SHOE, title="green tea", query="tea", category=("food",))), 0.0),
        (lambda: reward(goal=replace(GOAL, attributes=("leather",), options=())), 1.0),
    ],
)
def test_parts_are_paid_in_part(judged, total):
    assert judged().total == pytest.approx(total)
    assert judged().metrics()["success"] == float(total == 1.0)


def test_the_type_is_told_by_search_category_or_title():
    other = replace(SHOE, query="boots", category=("clothing", "boots"))
    assert type_reward(replace(other, title="Arco soft boots"), SHOE) == 1.0  # half of the title's words
    long = replace(SHOE, title="one two three four five six shoes")
    assert type_reward(replace(other, title="shoes"), long) == 0.5
    assert type_reward(replace(SHOE, title="shoes"), long) == 1.0
    assert type_reward(replace(other, title="green tea"), SHOE) == 0.0


# ------------------------------------------------------------------------------------------------ the session


def test_the_prompt_names_neither_the_product_nor_its_title():
    shop = catalogue_of("")
    for task, prompt in first_prompts(world("webshop")):
        assert task.data["asin"] not in prompt
        assert shop.products[task.data["asin"]].title not in prompt


def test_there_are_thousands_of_products_and_every_goal_can_be_met():
    shop = catalogue_of("")
    assert len(shop.products) == 3000
    for task in world("webshop").tasks("test"):
        goal, product = msgspec.convert(dict(task.data), Goal), shop.products[task.data["asin"]]
        chosen = {name: value for name, values in product.options.items() for value in values if value in goal.options}
        assert judge(product, chosen=chosen, goal=goal, target=product).total == 1.0


def test_pages_are_walked_through():
    session = opened(world("webshop"))
    first = read(call(session, "search_action", keywords="running shoes"))
    assert first.startswith("page 1 of 5")
    assert read(call(session, "click_action", value=NEXT)).startswith("page 2 of 5")
    assert read(call(session, "click_action", value=PREVIOUS)) == first
    asin = first.splitlines()[1].split(":")[0]
    item = read(call(session, "click_action", value=asin.lower()))
    assert "price $" in item
    option = item.splitlines()[2].split(": ")[1].split(", ")[0]
    assert f"(chosen: {option})" in read(call(session, "click_action", value=f"[{option}]"))
    assert read(call(session, "click_action", value="Features")).startswith("features: ")
    assert f"(chosen: {option})" in read(call(session, "click_action", value=PREVIOUS))
    assert read(call(session, "click_action", value=PREVIOUS)) == first
    assert read(call(session, "click_action", value=BACK)) == "search page\nyou can search"


def test_options_are_forgotten_when_the_product_is_left():
    environment = world("webshop")
    task = next(task for task in environment.tasks("test") if task.data["options"])
    session = environment.open(task, seed=0)
    session.start()
    while (action := session.solve()).tool_calls[0].arguments != {"value": BUY}:
        session.act(action)
    for value in (PREVIOUS, task.data["asin"], BUY):
        end = call(session, "click_action", value=value)
    assert end.done
    assert end.metrics["reward_options"] == 0.0
    assert end.reward < 1


def test_a_click_on_what_is_not_there_is_answered_with_what_is():
    session = opened(world("webshop"))
    seen = call(session, "click_action", value="buy now")
    assert seen.invalid
    assert "nothing to click as 'buy now'" in read(seen)
    call(session, "search_action", keywords="green tea")
    for value in ("B000000000", "", MEGABYTE, "search", BUY):
        seen = call(session, "click_action", value=value)
        assert (seen.invalid, seen.done, seen.reward) == (True, False, 0.0)
        assert len(read(seen)) < 2_500
    assert "no search bar here" in read(call(session, "search_action", keywords="tea"))


@pytest.mark.parametrize("keywords", ["", "?!", '" OR title:*', MEGABYTE, "zzzzqqqq"])
def test_a_search_for_nothing_finds_nothing(keywords):
    assert read(call(opened(world("webshop")), "search_action", keywords=keywords)).startswith("nothing found")


def test_wrong_types_are_explained():
    assert opened(world("webshop")).act(Action(tool_calls=(ToolCall("click_action", {"value": 1}),))).invalid


# ------------------------------------------------------------------------------------------------ WebShop's own files


def official(tmp_path, *, human=True, count=40):
    items, notes, people = [], {}, {}
    for n in range(count):
        asin = f"A{n:03}"
        items.append(
            {
                "asin": asin,
                "name": f"Brand{n} wooden chair model {n}",
                "category": "garden",
                "query": "Chair",
                "product_category": "Home › Furniture › Chairs",
                "full_description": "A chair.",
                "small_description": ["Solid wood", "easy to assemble"],
                "pricing": ["$1,049.50", "$5.49 to $20.00", None][n % 3],
                "customization_options": {"Color": [{"value": "Red", "image": None}, {"value": "Blue"}], "Size": None},
            }
        )
        notes[asin] = {
            "attributes": ["solid wood"],
            "instruction": "find a chair",
            "instruction_attributes": ["solid wood"],
        }
        written = {
            "instruction": "I want a chair.",
            "instruction_attributes": ["solid wood"],
            "instruction_options": ["red"],
        }
        people[asin] = [written, written | {"instruction": "A chair, please."}]
    files = {"items_shuffle_1000.json": items, "items_ins_v2_1000.json": notes}
    files |= {"items_human_ins.json": people} if human else {}
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    return str(tmp_path)


@pytest.mark.parametrize("human", [True, False])
def test_webshops_own_files_make_a_shop(tmp_path, human):
    environment = make("webshop", options={"products": official(tmp_path, human=human)})
    assert_splits_are_apart(environment, by=lambda data: data["asin"])
    tasks = [task for split in ("train", "dev", "test") for task in environment.tasks(split)]
    assert len(tasks) == (80 if human else 40)
    for task in tasks[:10]:
        assert won(play(environment, task=task, seed=0))
    product = catalogue_of(environment.options["products"]).products["A000"]
    assert (product.price, product.options, product.category[1]) == (1049.5, {"color": ("red", "blue")}, "Furniture")


def test_missing_half_or_foreign_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no items_shuffle\.json"):
        make("webshop", options={"products": str(tmp_path)}).tasks("train")
    official(tmp_path)
    (tmp_path / "items_shuffle_1000.json").write_text(json.dumps([{"asin": "x"}]))
    with pytest.raises(ConfigError, match=r"number 0 .* is no WebShop product"):
        make("webshop", options={"products": str(tmp_path)}).tasks("train")
    (tmp_path / "items_shuffle_1000.json").write_text("[{")
    with pytest.raises(ConfigError, match="cannot be read"):
        make("webshop", options={"products": str(tmp_path)}).tasks("train")
