"""MiniWoB++ in a real headless Chromium: small pages with one thing to do on each.

The page is shown as its accessibility tree, one numbered line for each element. Promise: only the
package's own pages are fetched, and what `allow` names. A browser that dies fails its session and
is replaced. The reward is the page's own (1, or 0 if the page gives -1) without its discount for
time, which would depend on the model's speed.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ludus.environments import Reply, tool
from ludus.errors import EnvironmentFailed, nearest
from ludus.types import ToolCall
from ludus.worlds.browser import page
from ludus.worlds.browser.chromium import Chromium
from ludus.worlds.browser.levels import LEVELS
from ludus.worlds.pool import Pool

SITE = "http://miniwob.test/"
"""Does not exist: the package's files are served under this name."""
MAX_TEXT_CHARS = 500
_SEEDS = {"train": range(0, 60), "dev": range(60, 68), "test": range(68, 80)}
_BEGIN = """
Math.seedrandom(%r); core.EPISODE_MAX_TIME = 2e9; core.startEpisodeReal();
for (const id of ['reward-display', 'query', 'click-canvas', 'sync-task-cover'])
  if (document.getElementById(id)) document.getElementById(id).style.display = 'none';
"""
"""The page's clock never ends a session; what shows reward, time and question is hidden."""


class Browser:
    """You see a web page as numbered lines. Do what is asked with the tools. Numbers hold until the next lines come. You have one try."""

    isolation = "process"
    capabilities = ("tool use", "planning")
    max_turns = 12

    def __init__(self, *, levels: tuple[str, ...] = tuple(LEVELS), allow: tuple[str, ...] = ()) -> None:
        """levels: of MiniWoB++, by page name; allow: prefixes of URLs that pages may also fetch."""
        for level in levels:
            if level not in LEVELS:
                raise ValueError(f"no level {level!r}.{nearest(level, LEVELS)} Known: {', '.join(LEVELS)}")
        for start in allow:
            if not start.startswith(("http://", "https://")) or start.count("/") < 3:
                expected = "expected the beginning of a URL with its host, e.g. 'http://127.0.0.1:8000/'"
                raise ValueError(f"allow has {start!r}; {expected}")
        self.levels, self.allow = levels, allow

    def tasks(self, split: str) -> list[dict[str, Any]]:
        seeds = _SEEDS.get(split, range(0))
        return [{"id": f"{level}-{seed}", "level": level, "seed": seed} for seed in seeds for level in self.levels]

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.level, self.done = task["level"], 0
        self.chromium = _POOL.take()
        self.chromium.visit(f"{SITE}miniwob/{self.level}.html", answer=self._answer)
        self.chromium.evaluate(_BEGIN % f"{self.level} {task['seed']}")
        self.asked: str = self.chromium.evaluate("core.getUtterance()")
        return f"{self.asked}\n{self._look()}"

    @tool
    def click(self, element: int) -> Reply:
        """Click on something.

        element: its number"""
        return self._act(element, page.click)

    @tool
    def type_text(self, element: int, text: str) -> Reply:
        """Write into a field, in place of what stands there.

        element: the field's number
        text: what to write"""
        return self._act(element, lambda chromium, found: page.type_text(chromium, found, _clean(text)))

    @tool
    def select(self, element: int, option: str) -> Reply:
        """Select an option of a list.

        element: the list's number
        option: the option's text"""
        return self._act(element, lambda chromium, found: page.choose(chromium, found, _clean(option)))

    @tool
    def scroll(self, element: int, direction: Literal["up", "down"]) -> Reply:
        """Scroll what something is in, or the whole page.

        element: its number, or 0 for the page"""
        down = direction == "down"
        if element == 0:
            page.scroll(self.chromium, None, down=down)
            return self._seen()
        return self._act(element, lambda chromium, found: page.scroll(chromium, found, down=down))

    def solve(self) -> ToolCall:
        return LEVELS[self.level](self.asked, self.elements, self.done)

    def random_action(self, rng: random.Random) -> ToolCall:
        element = rng.randint(1, max(1, len(self.elements)))
        typed = {"element": element, "text": rng.choice(self.asked.split())}
        return rng.choice([ToolCall("click", {"element": element}), ToolCall("type_text", typed)])

    def close(self) -> None:
        if hasattr(self, "chromium"):
            _POOL.give_back(vars(self).pop("chromium"))

    def _act(self, number: int, do: Callable[[Chromium, page.Element], None]) -> Reply:
        if not 1 <= number <= len(self.elements):
            return Reply(f"there is no element {number}; they go from 1 to {len(self.elements)}", invalid=True)
        try:
            do(self.chromium, self.elements[number - 1])
        except page.NotThere as error:
            return Reply(f"{error}\n{self._look()}", invalid=True)
        except LookupError as error:
            return Reply(f"the browser refuses: {str(error)[:200]}\n{self._look()}", invalid=True)
        self.done += 1
        return self._seen()

    def _seen(self) -> Reply:
        over, reward = self.chromium.evaluate("[WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]")
        if over:
            text, won = ("right", 1.0) if reward >= 1 else ("wrong", 0.0)
            return Reply(text, reward=max(0.0, float(reward)), done=True, metrics={"success": won})
        return Reply(self._look())

    def _look(self) -> str:
        self.elements = page.read(self.chromium)
        return page.show(self.elements)

    def _answer(self, url: str) -> Path | bool:
        """The package's own file, if the URL names one inside its folder."""
        if url.startswith(SITE):
            path = (pages() / url.removeprefix(SITE).partition("?")[0].partition("#")[0]).resolve()
            return path if path.is_relative_to(pages()) else False
        return url.startswith(self.allow) if self.allow else False


@cache
def pages() -> Path:
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentFailed('browser needs miniwob, which is not installed: pip install "ludus[worlds]"')
    return (Path(spec.submodule_search_locations[0]) / "html").resolve()


def _clean(text: str) -> str:
    return text[:MAX_TEXT_CHARS].encode("utf-8", "replace").decode()


def _start() -> Chromium:
    pages()  # says what to install before a browser is started in vain
    return Chromium()


_POOL = Pool(_start)
