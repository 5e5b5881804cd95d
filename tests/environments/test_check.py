import sys

import pytest

from ludus.checks import check, trial
from ludus.environments import make, wrap
from ludus.errors import TurnTimeout
from ludus.sandboxes.fake import FakeSandboxes
from tests.environments import authored

check_module = sys.modules["ludus.checks.check"]
FAKE = "ludus.environments.fake:FakeEnvironment"


def whats(report, severity="error"):
    return " | ".join(finding.what for finding in report.findings if finding.severity == severity)


@pytest.mark.parametrize("author", [authored.Adder, authored.AsyncAdder, authored.Typed])
def test_a_sound_environment_passes(author):
    report = check(wrap(author), num_tasks=3)
    assert report.ok, str(report)
    assert report.facts["solver"].startswith("5 of 5 solved")


@pytest.mark.parametrize(
    ("author", "what"),
    [
        (authored.SeedInPrompt, "first prompt of 'seed_in_prompt/train/0' changes with the seed"),
        (authored.GlobalRandom, "draws from the global random state"),
        (authored.HashSeed, "in another process with another hash seed"),
        (authored.Overlap, "1 test tasks are also train tasks"),
        (authored.Forgetful, "with the same seed and actions went differently: turn 1: 'end 1"),
        (authored.Forgetful, "the solver never succeeds"),
    ],
)
def test_each_fault_has_its_finding(author, what):
    report = check(wrap(author), num_tasks=2)
    assert not report.ok
    assert what in whats(report)
    assert all(finding.fix for finding in report.findings)


@pytest.mark.parametrize("author", [authored.Numbers, authored.ListsItsAnswers])
def test_the_audit_has_nothing_to_say_about_a_sound_environment(author):
    report = check(wrap(author), num_tasks=4)
    assert not report.findings, str(report)
    assert report.facts["solver"].startswith("12 of 12 solved"), "dev is played too"


@pytest.mark.parametrize(
    ("author", "what"),
    [
        (authored.PaysForSilence, "a player that says an empty answer every turn is paid in 6 of 6 tasks"),
        (authored.PaysForNonsense, "an invalid action at 'pays_for_nonsense/train/0' pays 0.1"),
        (authored.PaysAnyAnswer, "said every turn, solves 6 of 6 tasks"),
        (authored.PaysEveryTime, "said every turn, earns 3 at 'pays_every_time/train/0', the solver 1\n"),
        (authored.PaysToAndFro, "a player that repeats a rewarded action earns 2"),
        (authored.TellsItsAnswer, "the first prompt of 12 of 12 tasks contains the final answer, e.g. '100'"),
        (authored.SharesDev, "3 test tasks are also dev tasks"),
        (authored.FailsInDev, "fails_in_dev/dev/0: start raised ValueError"),
    ],
)
def test_each_way_to_be_paid_for_nothing_has_its_finding(author, what):
    report = check(wrap(author), num_tasks=4)
    assert not report.ok
    assert what in str(report)


def test_a_class_that_knows_two_splits_only_has_no_dev_tasks_and_no_fault():
    report = check(wrap(authored.Adder), num_tasks=1)
    assert report.facts["dev tasks"] == "those of test"
    assert report.ok, str(report)


def test_an_environment_in_a_sandbox_is_repeated_in_another_process_too():
    report = check(wrap(authored.HashSeedInSandbox), num_tasks=1, sandboxes=FakeSandboxes())
    assert "in another process with another hash seed" in whats(report), str(report)


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("raise", "act raised RuntimeError: the fake raised"),
        ("exit", "act raised SystemExit: the fake left"),
        ("nan", "act reward is nan; expected a finite number"),
        ("nothing", "act a message's content is NoneType; expected a str"),
        ("number", "act answered int; expected an Observation"),
        ("surrogate", "not valid Unicode"),
    ],
)
def test_a_hostile_environment_is_reported_not_thrown(fault, what, blocking):
    report = check(make("fake", source=FAKE, options={"fault": fault, "blocking": blocking}), num_tasks=1)
    assert what in whats(report)


@pytest.mark.parametrize("place", ["tasks", "open", "start", "act", "close"])
def test_a_fault_is_found_wherever_it_is(place):
    report = check(make("fake", source=FAKE, options={"fault": "raise", "fault_in": place}), num_tasks=1)
    assert place in whats(report)


def test_a_hanging_environment_ends_the_check_not_the_author(monkeypatch):
    monkeypatch.setattr(trial, "TURN_S", 0.25)
    report = check(make("fake", source=FAKE, options={"fault": "hang"}), num_tasks=1)
    assert "act did not return within" in whats(report)


@pytest.mark.parametrize("place", ["start", "act"])
def test_what_hangs_every_time_is_not_waited_for_again_and_again(place, monkeypatch):
    monkeypatch.setattr(trial, "TURN_S", 0.1)
    waited = []
    monkeypatch.setattr(check_module, "in_time", counting(trial.in_time, waited))
    monkeypatch.setattr(trial, "in_time", counting(trial.in_time, waited))
    report = check(make("fake", source=FAKE, options={"fault": "hang", "fault_in": place}), num_tasks=5)
    assert f"{place} did not return within" in whats(report)
    assert "not examined any further" in whats(report, "warning")
    assert len(waited) == check_module.MAX_HANGS


def counting(in_time, waited):
    async def counted(work, *, where):
        try:
            return await in_time(work, where=where)
        except TurnTimeout:
            waited.append(where)
            raise

    return counted


def test_a_megabyte_is_a_warning():
    report = check(make("fake", source=FAKE, options={"fault": "megabyte"}), num_tasks=1)
    assert "an observation has 1000000 characters" in whats(report, "warning")


def test_data_that_is_not_json_is_found():
    class Odd(authored.Echo):
        tasks = {"train": [{"word": "red", "set": {1}}], "test": [{"word": "blue"}]}

    assert "is not JSON" in whats(check(wrap(Odd), num_tasks=1))


def test_ids_given_twice_and_empty_splits_are_found():
    class Twice(authored.Echo):
        tasks = {"train": [{"word": "red", "id": 1}, {"word": "blue", "id": 1}]}

    found = whats(check(wrap(Twice), num_tasks=1))
    assert "'twice/train/1' is given twice" in found
    assert "no test tasks" in found


def test_a_class_without_players_is_checked_as_far_as_it_goes():
    class Talk:
        """Talk."""

        tasks = {"train": [{"n": 1}], "test": [{"n": 2}]}

        def setup(self, task, rng):
            return "hello"

        def act(self, text):
            return "hm"

    report = check(wrap(Talk))
    assert report.ok
    assert {"solver": "none", "random player": "none"}.items() <= report.facts.items()
    assert "no max_turns" in whats(report, "warning")


def test_the_report_reads_as_text():
    report = check(wrap(authored.Overlap), num_tasks=1)
    assert str(report).splitlines()[0] == "overlap"
    assert "error: 1 test tasks are also train tasks" in str(report)
    assert str(report).endswith("not ok")
