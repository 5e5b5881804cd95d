import importlib.util
import json
import random
import subprocess
import sys

import pytest

if importlib.util.find_spec("alfworld") is None:  # importing it would make a folder in the user's home
    pytest.skip('household needs alfworld: pip install "ludus[worlds]"', allow_module_level=True)
pytest.importorskip("fast_downward", reason='household needs the planner: pip install "ludus[worlds]"')

from ludus.checks import check
from ludus.environments import make
from ludus.errors import ConfigError, EnvironmentFailed
from ludus.types import Action, ToolCall
from ludus.worlds.household import package, rooms, translation
from ludus.worlds.household.game import LIBRARIES, Game, things_of
from ludus.worlds.household.grammar import Each, Rule, read_grammar, read_sentence
from ludus.worlds.household.world import FOLDERS
from tests.worlds.playing import contents, patient, play, won, world


def generated():
    return world("household", games="generated")


def say(command):
    return Action(tool_calls=(ToolCall("take_action", {"action": command}),))


@pytest.fixture
def official(tmp_path, monkeypatch):
    """A folder like ALFWorld's, with one game in each split, made here."""
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    for number, (split, folder) in enumerate(FOLDERS.items()):
        game, said = rooms.make_game("pick_and_place_simple", split=split, number=number)
        game["grammar"] = game["grammar"].replace("UNKNOWN GOAL", said)
        for name, solvable in (("trial_1", True), ("trial_2", False), ("trial_movable", True)):
            at = tmp_path / "json_2.1.1" / folder / f"kind-{number}" / name
            at.mkdir(parents=True)
            (at / "game.tw-pddl").write_text(json.dumps({**game, "solvable": solvable}))
    return tmp_path


@pytest.mark.parametrize("kind", rooms.KINDS)
def test_the_planner_wins_a_game_of_every_kind(kind):
    environment = generated()
    task = next(task for task in environment.tasks("test") if task.data["kind"] == kind)
    seen = play(environment, task=task, seed=0)
    assert won(seen)
    assert [observation.reward for observation in seen[:-1]] == [0.0] * (len(seen) - 1)


def test_train_dev_and_test_share_no_game_and_no_room():
    environment = generated()
    splits = [contents(environment, split) for split in ("train", "dev", "test")]
    assert all(splits)
    assert sum(map(len, splits)) == len(set.union(*splits))
    problems = [
        {rooms.make_game(kind, split=split, number=n)[0]["pddl_problem"] for kind in rooms.KINDS for n in range(16)}
        for split in rooms.PLANS
    ]
    assert sum(map(len, problems)) == len(set.union(*problems)) == 3 * 16 * len(rooms.KINDS)
    plans = [{first + plan for first in (1, 201, 301, 401) for plan in part} for part in rooms.PLANS.values()]
    assert len(set.union(*plans)) == sum(map(len, plans)) == 120


def test_nobody_mistakes_a_generated_game_for_an_official_one(official):
    assert all(task.id.split("/")[2].startswith("generated-") for task in generated().tasks("test"))
    environment = make("household")
    assert [task.id for task in environment.tasks("test")] == ["household/test/alfworld-kind-2-trial_1"]
    assert [task.data["game"] for task in environment.tasks("train")] == ["train/kind-0/trial_1/game.tw-pddl"]


def test_an_official_game_is_played_from_its_file(official):
    environment = make("household", options={"games": "official"})
    seen = play(environment, task=environment.tasks("test")[0], seed=0)
    assert won(seen)
    assert "Your task is to: put" in seen[0].messages[-1].content


def test_a_half_downloaded_game_and_a_missing_folder_are_named(official, monkeypatch):
    environment = make("household", options={"games": "official"})
    task = environment.tasks("test")[0]
    (official / "json_2.1.1" / task.data["game"]).write_text('{"pddl_problem": "(def')
    with pytest.raises(EnvironmentFailed, match="downloaded whole"):
        environment.open(task, seed=0).start()
    monkeypatch.setenv("ALFWORLD_DATA", str(official / "nowhere"))
    with pytest.raises(ConfigError, match="run alfworld-download"):
        make("household", options={"games": "official"})


def test_a_command_that_is_not_possible_changes_nothing():
    environment = generated()
    session = environment.open(environment.tasks("train")[0], seed=0)
    commands = session.start().messages[-1].content.rpartition("commands: ")[2]
    for hostile in ("", "fly", "look\nlook", "x" * 2**20, "go to sofa 99", "\x00"):
        seen = session.act(say(hostile))
        assert seen.invalid
        assert seen.reward == 0
        assert seen.messages[-1].content.endswith(commands)
        assert len(seen.messages[-1].content) < len(commands) + 500
    assert not session.act(say("look")).invalid
    session.close()


def must_print_the_same_whatever_the_hash_seed(script: str) -> None:
    command = [sys.executable, "-c", script]
    runs = {
        subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for seed in "01"
    }
    assert len(runs) == 1


def test_the_same_game_is_made_whatever_the_hash_seed():
    script = (
        "import hashlib; from ludus.worlds.household import rooms;"
        "print([hashlib.sha256(repr(rooms.make_game(k, split='dev', number=3)).encode()).hexdigest() for k in rooms.KINDS])"
    )
    must_print_the_same_whatever_the_hash_seed(script)


def test_the_users_home_and_variables_are_left_alone(tmp_path):
    script = (
        "import os; from ludus.worlds.household import rooms;"
        "rooms.make_game('pick_two_obj_and_place', split='dev', number=0); print(os.environ.get('ALFWORLD_DATA'))"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], env={"HOME": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert told.stdout == "None\n"
    assert not list(tmp_path.rglob("alfworld"))


def test_playing_loads_no_textworld_and_draws_from_no_global_random_state():
    script = (
        "import sys, random, numpy as np; from ludus.environments import make;"
        "before = random.getstate(), np.random.get_state()[1].tobytes();"
        "world = make('household', options={'games': 'generated'}); session = world.open(world.tasks('dev')[2], seed=0);"
        "session.start(); session.act(session.solve()); session.close();"
        "print(before == (random.getstate(), np.random.get_state()[1].tobytes()), 'textworld' in sys.modules, sys.argv)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told == "True False ['-c']\n"


# ------------------------------------------------------------------------------------------------ the game, beside textworld's own player


def new_game(kind, *, split="dev", number=0):
    game, _ = rooms.make_game(kind, split=split, number=number)
    return game, Game(game["pddl_domain"], game["grammar"], game["pddl_problem"])


def assert_the_words_are_textworlds(kind, *, split, number, turns):
    """Both play the same commands: at random, and then those of the plan."""
    textworld = pytest.importorskip("textworld")
    from textworld.envs.pddl import PddlEnv

    game, ours = new_game(kind, split=split, number=number)
    theirs = PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True))
    theirs.load(game)
    for id, thing in things_of(ours._rules).items():
        theirs._entity_infos[id].name = thing.name
    state, rng, plan = theirs.reset(), random.Random(number), []
    assert state.feedback == ours.first
    for turn in range(turns):
        assert (state["admissible_commands"], state["won"]) == (ours.commands, ours.won)
        plan = plan or ours.plan() if turn >= turns // 2 else []
        command = plan.pop(0) if plan else rng.choice(ours.commands)
        state, _, _ = theirs.step(command)
        assert state.feedback == ours.act(command), command
        if ours.won:
            break
    ours.close()


def test_a_game_says_word_for_word_what_textworlds_own_player_says():
    assert_the_words_are_textworlds("look_at_obj_in_light", split="dev", number=1, turns=6)


@patient
@pytest.mark.parametrize("kind", rooms.KINDS)
def test_games_of_every_kind_say_what_textworlds_own_player_says(kind):
    for split in rooms.PLANS:
        assert_the_words_are_textworlds(kind, split=split, number=7, turns=12)


def test_every_sentence_of_the_grammar_is_read_as_textworld_reads_it():
    pytest.importorskip("textworld")
    from textworld.envs.pddl.logic import GameLogic

    def ours(sentence):
        return [
            ("list" if symbol.listed else "each", len(symbol.given)) if isinstance(symbol, Each)
            else ("rule", symbol.name) if isinstance(symbol, Rule) else ("text", symbol)
            for symbol in sentence
        ]  # fmt: skip

    def theirs(symbol):
        kind, each = type(symbol).__name__, getattr(symbol, "symbol", symbol)
        if kind in ("ListSymbol", "ConditionalSymbol"):
            given = (each if kind == "ListSymbol" else symbol).given or ""
            return "list" if kind == "ListSymbol" else "each", given.count("(")
        return ("rule" if kind == "NonterminalSymbol" else "text"), str(symbol)

    logic, grammar = GameLogic(package.domain(), package.grammar()), read_grammar(package.grammar())
    actions = {
        name: (ours(read_sentence(each.template)), ours(read_sentence(each.feedback_rule)))
        for name, each in logic.actions.items()
    }
    assert {
        name: (ours(grammar.templates[name]), ours(grammar.feedback[name])) for name in grammar.templates
    } == actions
    assert grammar.rules.keys() == logic.grammar._rules.keys()
    for name, rules in logic.grammar._rules.items():
        said = [[theirs(symbol) for symbol in rule.rhs if str(symbol)] for rule in rules]
        assert [ours(sentence) for _, sentence in grammar.rules[name]] == said
        assert [len(condition) for condition, _ in grammar.rules[name]] == [rule.condition.count("(") for rule in rules]


@pytest.mark.parametrize(
    "value", ["__import__('os').getpid()", "r.__class__", "max(r.name for r in ())", "r.name.upper()"]
)
def test_nothing_in_a_games_grammar_is_run_as_code(value):
    game, ours = new_game("look_at_obj_in_light")
    ours.close()
    broken = game["grammar"].replace("{r.indefinite} {r.name or r.id}", "{" + value + "}")
    assert broken != game["grammar"]
    with pytest.raises(EnvironmentFailed, match="grammar"):
        Game(game["pddl_domain"], broken, game["pddl_problem"])


def test_a_planners_library_is_used_again_and_remembers_nothing_of_the_last_game():
    first = new_game("pick_two_obj_and_place")[1]
    library, plan, said = first._library, first.plan(), first.first
    first.act(plan[0])
    first.close()
    first.close()
    other = new_game("look_at_obj_in_light")[1]
    assert other._library is library
    other.act(other.commands[0])
    other.close()
    again = new_game("pick_two_obj_and_place")[1]
    assert again._library is library
    assert (again.first, again.plan()) == (said, plan)
    again.close()
    assert LIBRARIES._free.count(library) == 1


def test_a_game_is_translated_once_for_all_processes_and_again_where_its_file_is_damaged(tmp_path, monkeypatch):
    made = []
    monkeypatch.setenv("LUDUS_STATE", str(tmp_path))
    monkeypatch.setattr(
        translation, "translate", lambda *game, real=translation.translate: made.append(1) or real(*game)
    )
    game, _ = rooms.make_game("look_at_obj_in_light", split="dev", number=2)

    def anew():
        translation.translated.cache_clear()  # as a new process would find it
        return translation.translated(game["pddl_domain"], game["pddl_problem"])

    first = anew()
    assert [anew(), len(made)] == [first, 1]
    (file,) = (tmp_path / "household").iterdir()
    file.write_bytes(file.read_bytes()[:1000])
    assert [anew(), len(made)] == [first, 2]
    assert [anew(), len(made)] == [first, 2]
    file.unlink()
    (tmp_path / "household").rmdir()
    (tmp_path / "household").write_text("no folder can be made here")
    assert [anew(), len(made)] == [first, 3]


def test_a_game_is_translated_alike_whatever_the_hash_seed():
    script = (
        "import hashlib; from ludus.worlds.household import rooms; from ludus.worlds.household.translation import _run, translate;"
        "game, _ = rooms.make_game('pick_clean_then_place_in_recep', split='dev', number=3);"
        "game = game['pddl_domain'], game['pddl_problem'];"
        "print(hashlib.sha256(repr([translate(*game), _run(*game, optimize=True)[1]]).encode()).hexdigest())"
    )
    must_print_the_same_whatever_the_hash_seed(script)


def test_a_damaged_problem_is_a_named_failure():
    game, _ = rooms.make_game("look_at_obj_in_light", split="dev", number=2)
    with pytest.raises(EnvironmentFailed, match="planner cannot read"):
        translation.translated(game["pddl_domain"], game["pddl_problem"][:500])


@patient
def test_the_world_passes_its_own_check():
    report = check(generated(), num_tasks=2)
    assert not report.findings, str(report)
