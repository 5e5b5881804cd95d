"""`ludus env check`: finds faults before training. Promise: it always ends with a report.

It plays a random player and, if there is one, the environment's solver, through the same host as
training; then players that do not try, or that exploit the reward. audit.py judges their sessions.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ludus.checks import audit
from ludus.checks.audit import Finding
from ludus.checks.trial import MAX_TURNS, Trial, fingerprint, in_time, play, repeat_elsewhere
from ludus.config import RolloutConfig
from ludus.environments.environment import REQUIRED_SPLITS, SPLITS, Environment
from ludus.environments.needs import Provider, needs_of
from ludus.environments.registry import source_of
from ludus.errors import ConfigError, EnvironmentFailed, TurnTimeout
from ludus.hosting.answers import serialisable
from ludus.hosting.host import Host
from ludus.types import Action, Observation, Task, Tool

T = TypeVar("T")
_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
_LONG_CHARS = RolloutConfig().max_observation_chars
SAME_ACTIONS = "the same actions succeeded before"
AUDITED = 6
"""Tasks per player of the audit."""
MAX_HANGS = 2
"""Calls that may hang before the check ends: each would wait as long again."""
DRAWS = 4
"""Plays in a row that must change the global random state before it is an error."""


@dataclass(frozen=True)
class Report:
    """`facts` are the measurements, e.g. {"solver": "20 of 20 solved"}."""

    environment: str
    findings: tuple[Finding, ...]
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def ok(self) -> bool:
        return not self.errors

    def __str__(self) -> str:
        lines = [self.environment, *(f"  {name}: {fact}" for name, fact in self.facts.items())]
        return "\n".join([*lines, *(f"  {finding}" for finding in self.findings), "  ok" if self.ok else "  not ok"])


def check(environment: Environment, *, num_tasks: int = 20, sandboxes: Provider | None = None) -> Report:
    """Plays up to `num_tasks` tasks per split. `sandboxes`: for an environment that needs one."""
    return asyncio.run(_Examination(environment, num_tasks=num_tasks, sandboxes=sandboxes).run())


class _HangsAgain(Exception):
    """MAX_HANGS calls did not return."""


class _Examination:
    def __init__(self, environment: Environment, *, num_tasks: int, sandboxes: Provider | None = None) -> None:
        self.environment, self.needs = environment, needs_of(environment)
        self.num_tasks, self.sandboxes = num_tasks, sandboxes
        self.host = Host(sandboxes=sandboxes)
        self.findings: dict[str, Finding] = {}
        self.facts: dict[str, str] = {}
        self.tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
        self.num_hangs = 0

    async def draws_again(self, sample: list[Task]) -> bool:
        """Whether the environment draws from the global random state each time it is played; a
        library's thread (a websocket's ping) draws only now and then."""
        facts, findings = dict(self.facts), dict(self.findings)
        try:
            for task in sample:
                for _ in range(DRAWS):
                    before = _random_states()
                    await self.examine_play([task])
                    if before == _random_states():
                        break
                else:
                    return True
            return False
        finally:
            self.facts, self.findings = facts, findings

    async def run(self) -> Report:
        try:
            await self.examine_all()
        except _HangsAgain:
            self.warning("not examined any further", f"{MAX_HANGS} calls did not return; fix that first")
        await self.host.close()
        return Report(self.environment.name, tuple(self.findings.values()), self.facts)

    async def examine_all(self) -> None:
        await self.examine_tasks()
        sample = [task for split in SPLITS for task in _spread(self.tasks[split], self.num_tasks)]
        if sample:
            before = _random_states()
            await self.examine_play(sample)
            if before != _random_states() and await self.draws_again(sample):
                fix = "draw from the `rng` passed to setup, or from your own random.Random"
                self.error("it draws from the global random state", fix)

    async def examine_play(self, sample: Sequence[Task]) -> None:
        await self.examine_first_prompt(sample)
        randoms = await self.examine_player("random player", sample, mistakes=1.0)
        solver = await self.examine_player("solver", sample, mistakes=0.0)
        await self.examine_repetition([*randoms, *solver])
        await self.examine_after_done([*randoms, *solver])
        await self.examine_bad_actions(sample[0])
        await self.examine_idle_players(sample)
        await self.examine_reward_seekers(sample, randoms=randoms, solver=solver)
        await self.examine_answers(solver)
        await self.examine_close(sample[0])

    async def examine_tasks(self) -> None:
        if self.needs.isolation == "process":
            self.facts["isolation"] = "process (this check plays in its own process)"
        for split in SPLITS:
            async with self.noting(f"tasks({split!r}) must return a list of plain dicts"):
                self.tasks[split] = await in_time(self.host.tasks(self.environment, split), where=f"tasks({split!r})")
                self.facts[f"{split} tasks"] = str(len(self.tasks[split]))
                if not self.tasks[split] and split in REQUIRED_SPLITS:
                    self.error(f"no {split} tasks", f"return at least one dict from tasks({split!r})")
        contents = {split: {_content(task) for task in self.tasks[split]} for split in SPLITS}
        for other in REQUIRED_SPLITS:
            if contents["dev"] and contents["dev"] == contents[other]:  # a class with two splits
                self.facts["dev tasks"], self.tasks["dev"], contents["dev"] = f"those of {other}", [], set()
        for one, other in itertools.combinations(SPLITS, 2):
            if shared := contents[one] & contents[other]:
                what = f"{len(shared)} {other} tasks are also {one} tasks, e.g. {min(shared)[:80]}"
                self.error(what, "keep the splits disjoint by content")
        self.examine_task_data([task for split in SPLITS for task in self.tasks[split]])

    def examine_task_data(self, tasks: Sequence[Task]) -> None:
        ids = [task.id for task in tasks]
        if len(set(ids)) < len(ids):
            twice = next(each for each in ids if ids.count(each) > 1)
            self.error(f"task id {twice!r} is given twice", "make the `id` of every task unique")
        if bad := [task.id for task in tasks if not serialisable(dict(task.data))]:
            fix = "use only str, int, float, bool, None, list and dict with str keys"
            self.error(f"data of task {bad[0]!r} is not JSON", fix)
        if self.environment.max_turns is None:
            self.warning("no max_turns", "set the class attribute max_turns, or the run's limit applies")

    async def examine_first_prompt(self, sample: Sequence[Task]) -> None:
        fix = "use only the task's data in the first prompt; `rng` is for noise after the start"
        for task in sample[:5]:
            async with self.noting("start must return without failing"):
                starts = [await self.repeat(task, (), seed=seed) for seed in range(3)]
                if len({start.print for start in starts}) > 1:
                    self.error(f"the first prompt of {task.id!r} changes with the seed", fix)
                self.examine_tools(starts[0].observations[0].tools or ())

    def examine_tools(self, tools: Iterable[Tool]) -> None:
        for tool in tools:
            parameters = tool.parameters
            named = set(parameters.get("properties", {})) >= set(parameters.get("required", ()))
            if not _NAME.match(tool.name) or parameters.get("type") != "object" or not named:
                fix = "give it a name of letters and a JSON schema of type object"
                self.error(f"tool {tool.name!r} has no valid schema", fix)
            if not tool.description:
                self.warning(f"tool {tool.name!r} has no description", "write a docstring: the model reads it")

    async def examine_player(self, player: str, sample: Sequence[Task], *, mistakes: float) -> list[Trial]:
        trials: list[Trial] = []
        for seed, task in enumerate(sample):
            async with self.noting(f"found by the {player}; reproduce it with `ludus env play`"):
                try:
                    trials.append(await play(self.environment, task, host=self.host, seed=seed, mistakes=mistakes))
                except ConfigError as error:
                    self.facts[player] = "none"
                    self.warning(str(error), "warm starts and this check need it; the built-in worlds have examples")
                    return trials
        if trials:
            solved, turns = sum(trial.success for trial in trials), sum(len(trial.actions) for trial in trials)
            average = f"{turns / len(trials):.1f} turns on average"
            self.facts[player] = f"{solved} of {len(trials)} solved, {average}"
            self.examine_success(trials, solving=mistakes == 0.0)
        return trials

    def examine_success(self, trials: Sequence[Trial], *, solving: bool) -> None:
        rate = sum(trial.success for trial in trials) / len(trials)
        if solving and rate == 0:
            fix = "it must reach a total reward of 1 (or the metric `success`) within max_turns"
            self.error("the solver never succeeds", fix)
        elif solving and rate < 0.9:
            fix = "expected if chance decides; else fix the solver or raise max_turns"
            self.warning(f"the solver succeeds in only {rate:.0%} of the tasks", fix)
        elif not solving and rate > 0.9:
            self.warning(f"a random player succeeds in {rate:.0%} of the tasks", "make the tasks harder")
        longest = max(len(each.content) for trial in trials for seen in trial.observations for each in seen.messages)
        if longest > _LONG_CHARS:
            fix = f"training cuts it at {_LONG_CHARS} (rollout.max_observation_chars); shorten it"
            self.warning(f"an observation has {longest} characters", fix)

    async def examine_repetition(self, trials: list[Trial]) -> None:
        fix = "draw only from the `rng` of setup; do not iterate over sets, read a clock or use id()"
        began = time.monotonic()
        for trial in trials:
            async with self.noting(SAME_ACTIONS):
                again = await self.repeat(trial.task, trial.actions, seed=trial.seed)
                if again.print != trial.print:
                    went = f"went differently: {_difference(trial, again)}"
                    self.error(f"{trial.task.id!r} with the same seed and actions {went}", fix)
        async with self.noting(fix):
            if trials and (source := self.source()):
                prints = await asyncio.to_thread(
                    repeat_elsewhere, self.environment, trials, source=source,
                    splits=[split for split in SPLITS if self.tasks[split]],
                    sandboxes=self.sandboxes_source(), timeout_s=120 + 4 * (time.monotonic() - began),
                )  # fmt: skip
                if prints[0] != fingerprint(task for split in SPLITS for task in self.tasks[split]):
                    self.error("another process gets different tasks", fix)
                elif prints[1:] != [trial.print for trial in trials]:
                    self.error("the same trial went differently in another process with another hash seed", fix)

    def source(self) -> str:
        """Source of the class for another process; empty if there is none."""
        if self.needs.kind != "none":
            self.facts["sandbox"] = self.needs.kind
            if not self.sandboxes_source():
                self.facts["sandbox"] += " (exists in this process only, so no trial was repeated in another)"
                return ""
        source = source_of(self.environment) if serialisable(dict(self.environment.options)) else ""
        if not source:
            note = self.warning if self.needs.isolation == "none" else self.error
            fix = "define the class at the top level of a module, with options that are plain data"
            note("not checked in another process", fix)
        return source

    def sandboxes_source(self) -> str:
        """Source of the sandbox provider's class for another process, if one is needed."""
        cls = type(self.sandboxes)
        known = self.needs.kind != "none" and self.sandboxes is not None and "<locals>" not in cls.__qualname__
        return f"{cls.__module__}:{cls.__qualname__}" if known else ""

    async def examine_after_done(self, trials: Sequence[Trial]) -> None:
        trial = next((trial for trial in trials if trial.done and trial.actions), None)
        if trial is None:
            return
        async with self.noting(SAME_ACTIONS):
            session = await self.host.open(self.environment, trial.task, seed=trial.seed)
            await in_time(session.start(), where="start")
            for action in trial.actions:
                await in_time(session.act(action), where="act")
            try:
                late = await in_time(session.act(trial.actions[-1]), where="act after done")
            except EnvironmentFailed:
                return  # refused, as it should be
            finally:
                await session.close()
            if late.reward:
                self.error(f"act after done pays {late.reward} again", "raise when the session is over")

    async def examine_bad_actions(self, task: Task) -> None:
        tools: tuple[Tool, ...] = ()
        async with self.noting("start must return without failing"):
            tools = (await self.repeat(task, ())).observations[0].tools or ()
        for what, action in audit.bad_actions(tools):
            async with self.noting(f"{what} must give an observation with invalid=True, not an exception"):
                seen = (await self.repeat(task, [action])).observations[-1]
                if tools and not seen.invalid:
                    self.warning(f"{what} was not refused", "return an observation with invalid=True")

    async def examine_idle_players(self, sample: Sequence[Task]) -> None:
        for what, action in audit.bad_actions(()):
            async with self.noting(f"{what} must give an observation each time"):
                trials = await self.constantly(sample, action)
                self.note(audit.idle_findings(what, trials) + audit.paid_though_invalid(trials))

    async def examine_reward_seekers(
        self, sample: Sequence[Task], *, randoms: Sequence[Trial], solver: Sequence[Trial]
    ) -> None:
        solved = [trial for trial in solver if trial.success]
        best = {trial.task.id: trial.reward for trial in solved}
        trials = [*randoms, *solver]
        self.note(audit.paid_though_invalid(trials) + audit.excess_findings("a random player", randoms, best=best))
        tools = trials[0].observations[0].tools or () if trials else ()
        async with self.noting(SAME_ACTIONS):
            for action in audit.constant_actions(trials, tools):
                constant = await self.constantly(sample, action)
                self.note(audit.constant_findings(action, constant, best=best) + audit.paid_though_invalid(constant))
            for trial in _spread(solved, AUDITED):
                for actions in itertools.islice(audit.farming_actions(trial, max_turns=self.max_turns), AUDITED):
                    farmed = await self.repeat(trial.task, actions, seed=trial.seed)
                    self.note(audit.excess_findings("a player that repeats a rewarded action", [farmed], best=best))

    async def examine_answers(self, trials: Sequence[Trial]) -> None:
        """A solver's last action that wins at once is an answer: no prompt may contain it."""
        if getattr(self.environment, "lists_answers", False):
            self.facts["answers"] = "listed in the prompt, as the environment declares"
            return
        answers = []
        async with self.noting(SAME_ACTIONS):
            for trial in _spread([trial for trial in trials if trial.success and trial.actions], 2 * AUDITED):
                last = trial.actions[-1:]
                if (await self.repeat(trial.task, last, seed=trial.seed)).success:
                    answers.append((audit.prompt_of(trial), audit.answer_parts(last[0])))
        self.note(audit.leak_findings(answers))

    async def constantly(self, sample: Sequence[Task], action: Action) -> list[Trial]:
        return [await self.repeat(task, [action] * self.max_turns) for task in _spread(sample, AUDITED)]

    async def repeat(self, task: Task, actions: Sequence[Action], *, seed: int = 0) -> Trial:
        return await play(self.environment, task, host=self.host, seed=seed, actions=actions)

    @property
    def max_turns(self) -> int:
        return self.environment.max_turns or MAX_TURNS

    async def examine_close(self, task: Task) -> None:
        async with self.noting("close must be idempotent, also for a session that never started"):
            for started in (False, True):
                hosted = await self.host.open(self.environment, task, seed=0)
                if started:
                    await in_time(self.host.call(hosted.authored.start, where="start"), where="start")
                for _ in range(2):
                    await in_time(self.host.call(hosted.authored.close, where="close"), where="close")
                await hosted.close()

    def note(self, findings: Iterable[Finding]) -> None:
        """Findings that differ only in task ids and numbers count as one."""
        for finding in findings:
            self.findings.setdefault(re.sub(r"\S+/(train|dev|test)/\S+|\d+", "", finding.what), finding)

    def error(self, what: str, fix: str) -> None:
        self.note([Finding("error", what, fix)])

    def warning(self, what: str, fix: str) -> None:
        self.note([Finding("warning", what, fix)])

    @asynccontextmanager
    async def noting(self, fix: str) -> AsyncIterator[None]:
        try:
            yield
        except EnvironmentFailed as error:
            self.error(str(error), fix)
            self.num_hangs += isinstance(error, TurnTimeout)
            if self.num_hangs >= MAX_HANGS:
                raise _HangsAgain from None


def _difference(one: Trial, other: Trial) -> str:
    pairs = zip(one.observations, other.observations, strict=False)
    turn = next((i for i, (a, b) in enumerate(pairs) if fingerprint([a]) != fingerprint([b])), None)
    if turn is None:
        return f"{len(one.observations)} and {len(other.observations)} observations"
    return f"turn {turn}: {_text(one.observations[turn])!r} and {_text(other.observations[turn])!r}"


def _text(observation: Observation) -> str:
    return f"{observation.messages[-1].content[:60] if observation.messages else ''} (reward {observation.reward})"


def _content(task: Task) -> str:
    return json.dumps({key: value for key, value in task.data.items() if key != "id"}, sort_keys=True, default=repr)


def _spread(tasks: Sequence[T], count: int) -> list[T]:
    """Items spread evenly over the list: the first tasks are often the easy ones."""
    return [tasks[i * len(tasks) // count] for i in range(count)] if len(tasks) > count else list(tasks)


def _random_states() -> tuple[Any, Any]:
    state: Any = np.random.get_state()
    return random.getstate(), (state[1].tobytes(), *state[2:])
