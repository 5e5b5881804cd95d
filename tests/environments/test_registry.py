import sys
import types
from importlib.metadata import EntryPoint

import pytest

from ludus import plugins
from ludus.environments import make, names, registry, wrap
from ludus.environments.registry import locate
from ludus.errors import ConfigError, EnvironmentFailed
from tests.environments.authored import Adder

GAME = '''
from dataclasses import dataclass
from ludus.environments import Reply

@dataclass
class Game:
    """Say yes."""
    depth: int = 1
    tasks = {"train": [{"n": 1}], "test": [{"n": 2}]}
    def setup(self, task, rng): return "say"
    def act(self, text): return Reply("end", reward=float(text == "yes"), done=True)
'''


def test_the_built_in_worlds_are_known():
    assert names()[:3] == ["frozen_lake", "guess", "kv_store"]


def test_an_unknown_name_is_answered_with_the_near_one():
    with pytest.raises(
        ConfigError, match=r"unknown environment 'frozen_lak'. Did you mean 'frozen_lake'\? Known: frozen_lake, guess"
    ):
        make("frozen_lak")


def test_a_file_is_a_source(tmp_path):
    path = tmp_path / "game.py"
    path.write_text(GAME)
    for source in (str(path), f"{path}:Game"):
        game = make("mine", source=source, options={"depth": 2})
        assert (game.name, game.options, game.tasks("test")[0].id) == ("mine", {"depth": 2}, "mine/test/0")


def test_a_module_is_a_source():
    assert make("adder", source="tests.environments.authored:Adder").max_turns == 3


@pytest.mark.parametrize(
    ("text", "source", "message"),
    [
        ("", "{path}", "expected one class with `tasks` and `setup`, found none"),
        (GAME + GAME.replace("Game", "Other"), "{path}", "found Game, Other. Name it"),
        (GAME, "{path}:Gme", "there is no 'Gme' in it. Did you mean 'Game'"),
        ("import nowhere_to_be_found", "{path}", "cannot be imported: ModuleNotFoundError"),
        ("import sys; sys.exit(3)", "{path}", "cannot be imported: SystemExit"),
        ("def broken(", "{path}", "cannot be imported: SyntaxError"),
        ("", "{path}.missing.py", "does not exist"),
        ("", "no.such.module:Class", "module 'no.such.module' cannot be imported"),
        ("", "something", "expected file.py, file.py:Class or module:Class"),
    ],
)
def test_a_source_that_cannot_be_used_says_why(tmp_path, text, source, message):
    path = tmp_path / "game.py"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        make("game", source=source.format(path=path))
    assert message in str(caught.value)


def test_what_a_person_types_is_a_name_or_a_source():
    assert locate("guess") == ("guess", "")
    assert locate("games/my_game.py") == ("my_game", "games/my_game.py")
    assert locate("my_game.py:BigGame") == ("big_game", "my_game.py:BigGame")
    assert locate("package.module:Game") == ("game", "package.module:Game")


def test_installed_packages_offer_environments_by_entry_point(monkeypatch):
    point = EntryPoint("plugged", "tests.environments.authored:Echo", registry.GROUP)
    broken = EntryPoint("broken", "tests.no_such:Thing", registry.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: (point, broken))
    assert names()[len(registry.BUILT_IN) :] == ["broken", "plugged"]
    assert make("plugged").name == "plugged"
    with pytest.raises(ConfigError, match=r"'broken' of tests.no_such:Thing cannot be imported"):
        make("broken")


def test_a_class_that_is_an_environment_already_is_taken_as_it_is():
    fake = make("mine", source="ludus.environments.fake:FakeEnvironment", options={"turns": 2})
    assert (fake.name, fake.max_turns) == ("mine", 2)
    with pytest.raises(ConfigError, match=r"no option 'turn'. Did you mean 'turns'"):
        make("mine", source="ludus.environments.fake:FakeEnvironment", options={"turn": 2})


def test_listing_names_imports_no_world():
    worlds = [name for name in sys.modules if name.startswith("ludus.worlds.")]
    for name in worlds:
        del sys.modules[name]
    names()
    assert not [name for name in sys.modules if name.startswith("ludus.worlds.")]


def test_an_instance_takes_no_options():
    fake = make("fake", source="ludus.environments.fake:FakeEnvironment")
    module = types.ModuleType("holds_an_instance")
    module.thing = fake
    sys.modules["holds_an_instance"] = module
    assert make("fake", source="holds_an_instance:thing") is fake
    with pytest.raises(ConfigError, match="is an instance"):
        make("fake", source="holds_an_instance:thing", options={"turns": 1})


@pytest.mark.parametrize("has_open", [False, True])
def test_a_constructor_that_raises_is_named_and_no_traceback(has_open):
    class Broken(Adder):
        def __init__(self):
            raise KeyError("no key file")

    if has_open:
        Broken.open = lambda self, task, *, seed: None
    with pytest.raises(
        EnvironmentFailed, match=r"'broken': its constructor Broken\(\) raised: KeyError: 'no key file'"
    ):
        wrap(Broken)
