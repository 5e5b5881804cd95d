"""Import paths and registries: what a run file names is found, or refused with the reason and the near name."""

import sys
from importlib.metadata import EntryPoint

import pytest

from ludus import plugins
from ludus.errors import ConfigError
from ludus.plugins import Registry, resolve


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "of_an_author.py").write_text("def estimator(): return 7\nbroken = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "of_an_author.py"
    sys.modules.pop("of_an_author", None)


def make_registry():
    registry = Registry("algorithm.advantage", make=lambda name, found: (name, found), group="ludus.advantages")
    registry.add("gae", None)
    return registry


def test_a_module_and_a_file_name_the_same_object(module):
    assert resolve("of_an_author:estimator")() == resolve(f"{module}:estimator")() == 7


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("of_an_author:estimater", r"no 'estimater' in it\. Did you mean 'estimator'"),
        ("of_nobody:estimator", r"module 'of_nobody' cannot be imported: ModuleNotFoundError"),
        ("missing.py:estimator", r"'missing.py' does not exist"),
        ("estimator", r"expected module:name or file.py:name"),
        (":estimator", r"expected module:name or file.py:name"),
    ],
)
def test_what_cannot_be_imported_is_refused_with_the_reason(module, source, message):
    with pytest.raises(ConfigError, match=message):
        resolve(source)


def test_a_file_that_ends_the_interpreter_is_refused_and_leaves_no_module(tmp_path):
    file = tmp_path / "leaves.py"
    file.write_text("import sys; sys.exit(3)")
    before = set(sys.modules)
    with pytest.raises(ConfigError, match="cannot be imported: SystemExit: 3"):
        resolve(f"{file}:x")
    assert set(sys.modules) == before


def test_a_registry_knows_its_own_names_entry_points_and_import_paths(module, monkeypatch):
    point = EntryPoint("theirs", "of_an_author:estimator", "ludus.advantages")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == "ludus.advantages" else [])
    registry = make_registry()
    assert registry.names() == ["gae", "theirs"]
    assert registry.find("gae") == ("gae", None)
    assert registry.find("theirs")[1]() == 7
    assert registry.find("of_an_author:estimator")[0] == "of_an_author:estimator"
    assert registry.names() == ["gae", "theirs"], "an import path is no name"
    with pytest.raises(
        ConfigError, match=r"algorithm.advantage is 'gea', which is unknown. Did you mean 'gae'.*Your own"
    ):
        registry.find("gea")
