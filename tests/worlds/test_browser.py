import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("miniwob", reason='browser needs the pages of miniwob: pip install "ludus[worlds]"')
from ludus.worlds.browser.chromium import NAMES

if not any(map(shutil.which, NAMES)):
    pytest.skip("browser needs Chromium: apt-get install chromium", allow_module_level=True)

from ludus.checks import check
from ludus.environments import make
from ludus.errors import ConfigError, EnvironmentFailed
from ludus.types import Action, ToolCall
from ludus.worlds.browser import world as browser
from ludus.worlds.browser.levels import LEVELS
from tests.worlds.playing import contents, patient, play, won, world


@pytest.fixture
def session():
    opened = live("enter-password")
    yield opened
    opened.close()


def live(level, **options):
    environment = make("browser", options=options) if options else world("browser")
    task = next(task for task in environment.tasks("test") if task.data["level"] == level)
    opened = environment.open(task, seed=0)
    opened.first = opened.start()
    return opened


def say(name, **arguments):
    return Action(tool_calls=(ToolCall(name, arguments),))


def said(observation):
    return observation.messages[-1].content


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_is_solved_with_the_tools_that_a_model_has(level):
    environment = world("browser")
    task = next(task for task in environment.tasks("test") if task.data["level"] == level)
    seen = play(environment, task=task, seed=0)
    assert won(seen)
    assert sum(observation.reward for observation in seen) == 1


def test_a_wrong_click_ends_the_session_with_nothing():
    session = live("click-option")
    end = session.act(say("click", element=len(said(session.first).splitlines()) - 1))
    assert (end.done, end.reward) == (True, 0.0)
    session.close()


def test_what_is_not_there_or_cannot_be_done_is_said_and_the_session_goes_on(session):
    for action, message in [
        (say("click", element=99), "there is no element 99"),
        (say("click", element=-1), "there is no element -1"),
        (say("type_text", element=1, text="x"), "takes no text"),
        (say("select", element=2, option="x"), "is no list"),
    ]:
        observation = session.act(action)
        assert message in said(observation)
        assert observation.invalid
        assert not observation.done
    session.act(say("type_text", element=2, text="</input><script>core.endEpisode(1)</script>" * 50_000))
    session.act(say("type_text", element=2, text="'); core.endEpisode(1); ('"))
    scrolled = session.act(say("scroll", element=0, direction="down"))
    assert not scrolled.done
    assert "••••" in said(scrolled)


def test_nothing_but_the_packages_pages_is_fetched(session):
    chromium, asked = session._session._author.chromium, []
    answer = session._session._author._answer
    chromium._answer = lambda url: (asked.append(url), answer(url))[1]
    script = "fetch('{}').then(r => document.title = 'came', e => document.title = 'refused')"
    for url in (
        "http://127.0.0.1:1/",
        "https://example.com/",
        "file:///etc/passwd",
        f"{browser.SITE}..%2f..%2fenvironment.py",
    ):
        chromium.evaluate(f"document.title = ''; {script.format(url)}; 0")
        while chromium.evaluate("document.title") == "":
            pass
        assert chromium.evaluate("document.title") == "refused", url
    assert "https://example.com/" in asked
    assert answer(f"{browser.SITE}../environment.py") is False


def test_an_allow_list_lets_its_own_urls_through():
    author = browser.Browser(allow=("http://127.0.0.1:8000/",))
    assert author._answer("http://127.0.0.1:8000/x.png") is True
    assert author._answer("http://127.0.0.1:80001/") is False
    assert author._answer("http://127.0.0.1.example.com/") is False
    with pytest.raises(ConfigError, match="expected the beginning of a URL"):
        make("browser", options={"allow": ["http://"]})


def test_a_dead_browser_is_a_named_failure_and_the_next_session_gets_another(session):
    os.killpg(session._session._author.chromium.process.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFailed, match="the browser died"):
        session.act(say("click", element=1))
    other = live("enter-password")
    assert other.first.messages == session.first.messages
    other.close()


def test_no_splits_share_a_task_id_or_seed():
    environment = world("browser")
    splits = [contents(environment, split) for split in ("train", "dev", "test")]
    assert all(splits)
    assert sum(map(len, splits)) == len(set.union(*splits))


def _command(process):
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_the_profile_of_a_killed_process_goes_with_the_next_start(tmp_path):
    code = "import time; from ludus.worlds.browser.chromium import Chromium; c = Chromium(); print('up', flush=True); time.sleep(1000)"
    environ = {**os.environ, "LUDUS_STATE": str(tmp_path)}

    def start():
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environ)
        assert process.stdout.readline() == "up\n"
        return process

    owner = start()
    (profile,) = (tmp_path / "folders").iterdir()
    owner.kill()
    owner.communicate()
    deadline = time.monotonic() + 60
    while any(str(profile).encode() in _command(folder) for folder in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline, "the browser outlives the process that started it"
        time.sleep(0.05)
    assert profile.exists()
    owner = start()
    owner.terminate()
    owner.communicate()
    assert not profile.exists()


def test_an_unknown_level_and_a_machine_without_chromium_are_told(monkeypatch):
    with pytest.raises(ConfigError, match="Did you mean 'click-link'"):
        make("browser", options={"levels": ["click-lnk"]})
    own = world("browser").author.setup.__globals__  # wherever its module was imported from
    monkeypatch.setitem(own, "_POOL", browser.Pool(browser._start))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(EnvironmentFailed, match="apt-get install chromium"):
        live("click-link")


@patient
def test_no_page_is_in_two_splits():
    environment, found = world("browser"), {}
    for split in ("train", "dev", "test"):
        for task in environment.tasks(split):
            session = environment.open(task, seed=0)
            found.setdefault(said(session.start()), set()).add(split)
            session.close()
    assert all(len(splits) == 1 for splits in found.values())


@patient
def test_the_world_passes_its_own_check():
    report = check(world("browser"), num_tasks=4)
    assert not report.findings, str(report)
