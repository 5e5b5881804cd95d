"""An override that a command does not read is refused, and what is listed as unread are keys of a run."""

import pytest

from ludus.cli.unread import INSTEAD, UNREAD, refuse_unread
from ludus.config import RunConfig
from ludus.errors import ConfigError


def exists(key):
    section, _, name = key.partition(".")
    field = RunConfig.model_fields.get(section)
    return field is not None and (not name or name in field.annotation.model_fields)


def test_every_key_that_is_listed_exists():
    listed = [key for keys in UNREAD.values() for key in keys]
    listed += [key for command, key in INSTEAD] + [key for keys in INSTEAD.values() for key in keys.split(" or ")]
    assert [key for key in listed if not exists(key)] == []


@pytest.mark.parametrize(
    ("command", "override", "message"),
    [
        ("sft", "trainer.lr=1e-3", "trainer.lr has no effect on `ludus sft`; use sft.lr instead"),
        ("sft", "horizons.guess.every=3", "horizons.guess.every has no effect on `ludus sft`; leave it out"),
        ("train", "sft.steps=3", "`ludus train`"),
        ("eval", "rollout.temperature=0.5", "use evaluation.temperature instead"),
        ("evolve", "sft.num_trajectories=3", "use evolve.num_trajectories instead"),
        ("collect", "algorithm={}", "algorithm has no effect"),
    ],
)
def test_what_would_change_nothing_is_refused(command, override, message):
    with pytest.raises(ConfigError) as refusal:
        refuse_unread(["seed=1", override], command=command)
    assert message in str(refusal.value)


@pytest.mark.parametrize("command", UNREAD)
def test_what_every_command_reads_is_not(command):
    read = ["name=x", "model.name=m", "rollout.max_turns=3", "store.folder=f", "seed=2"]
    assert refuse_unread(read, command=command) is None, "it returns, and refuses nothing"


def test_a_command_refuses_what_it_does_not_read_once_it_is_a_key_at_all(ludus):
    code, _, err = ludus("eval", "--model", "http://h/v1", "--environments", "guess", "trainer.lr=3", "--dry-run")
    assert code == 1
    assert "trainer.lr has no effect on `ludus eval`" in err
    assert "Did you mean 'lr'" in ludus("eval", "--environments", "guess", "trainer.lrr=3")[2]
