"""The progress display: a listener of the Recorder. Promise: it is cheap, and never ends the run.

A terminal gets a panel that is redrawn twice a second, anything else at most one line every 5 s.
It writes to stderr, so that stdout can be piped.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ludus.cli.scoreboard import Scoreboard
from ludus.reports.curves import tokens_per_s

if TYPE_CHECKING:
    from ludus.config import RunConfig

PLAIN_EVERY_S = 5.0
WARNINGS = ("collapse", "collapsed", "no_gradient", "stall", "listener_failed")
"""Events whose text is shown at once, as a warning."""


class Progress:
    """Recorder(..., listeners=[Progress(config)]). It stops when the Recorder closes."""

    def __init__(
        self, config: RunConfig, *, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.board = Scoreboard(config, clock=clock)
        self._console = console or Console(stderr=True)
        self._clock, self._last_line = clock, -math.inf
        self._live: Live | None = None
        self._gone = False

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> None:
        self.board.update(kind, fields)
        try:
            if self._gone:
                return
            if kind == "closed":
                if self._live is not None:
                    self._live.stop()
                    self._live = None
            elif kind in WARNINGS:
                self._warn(str(fields["text"]))
            elif self._console.is_terminal:
                self._open()
            elif kind in ("metrics", "evaluation") or (kind == "trajectory" and self.board.is_playing):
                self._print_line(kind)
        except OSError:  # the terminal or pipe is gone: the run continues without a display
            self._live, self._gone = None, True

    def _open(self) -> None:
        """At the first event: before it, a wrong run file may end the command with a message."""
        if self._live is None:
            self._live = Live(
                get_renderable=lambda: panel(self.board),
                console=self._console,
                refresh_per_second=2,
                redirect_stdout=sys.stdout.isatty(),  # piped output must not end up in the display
            )
            self._live.start()

    def _warn(self, text: str) -> None:
        """Prints a line that stays; on a terminal above the panel."""
        if self._live is not None:
            self._live.console.print(Text(f"warning: {text}", style="yellow"))
        else:
            print(f"warning: {text}", file=self._console.file, flush=True)

    def _print_line(self, kind: str) -> None:
        board, now = self.board, self._clock()
        last_step = board.num_evaluated == board.num_evaluating if board.is_playing else board.step == board.steps
        if kind == "evaluation" or last_step or now - self._last_line >= PLAIN_EVERY_S:
            self._last_line = now
            if kind == "evaluation":
                rates = ", ".join(f"{name} {rate}" for name, rate in board.held_out.items())
                text = f"held-out success: {rates}"
            elif kind == "trajectory":
                played = f"{board.num_evaluated}/{board.num_evaluating}"
                text = f"{board.phase}: session {played}, {clock_text(board.elapsed_s)} elapsed"
            else:
                text = step_line(board)
            # not console.print: rich ends the process when a pipe closes
            print(text, file=self._console.file, flush=True)


def panel(board: Scoreboard) -> Group:
    environments = [_environments(board)] if board.environments else []
    facts = _facts(board)
    return Group(_head(board), *environments, *([Text("  " + " · ".join(facts), style="dim")] if facts else []))


def _head(board: Scoreboard) -> Table:
    done, total = (board.step, board.steps) if board.steps else (board.num_evaluated, board.num_evaluating)
    phase = "evaluating" if board.num_evaluated and not board.steps and not board.is_playing else board.phase
    left = f", {clock_text(board.left_s)} left" if board.left_s is not None else ""
    cells: list[Any] = [Text(phase, style="bold"), Text(board.name)]
    if board.steps or board.num_evaluated:
        unit = "step" if board.steps else "session"
        cells += [ProgressBar(total=max(1, total), completed=done, width=30), Text(f"{unit} {done}/{total}")]
    head = Table.grid(padding=(0, 1))
    head.add_row(*cells, Text(f"{clock_text(board.elapsed_s)} elapsed{left}", style="dim"))
    return head


def _environments(board: Scoreboard) -> Table:
    table = Table(box=None, pad_edge=True, header_style="dim")
    table.add_column("environment")
    for name in ("reward", "", "success", "", "turns", "invalid"):
        table.add_column(name, justify="left" if not name else "right")
    table.add_column("held-out success, 95 %")
    for name in board.environments:
        reward, success = f"train/reward/{name}", f"train/success/{name}"
        table.add_row(
            Text(name),
            _number(board.recent(reward), ".2f"),
            Text(board.trend(reward), style="cyan"),
            _number(board.recent(success), ".0%"),
            Text(board.trend(success, low=0, high=1), style="green"),
            _number(board.recent(f"train/turns/{name}"), ".1f"),
            _number(board.metrics.get(f"trajectories/invalid_rate/{name}"), ".0%"),
            board.held_out.get(name, ""),
        )
    return table


def _facts(board: Scoreboard) -> list[str]:
    """The numbers that belong to no environment, without those that are missing or zero."""
    metrics, facts = board.metrics, []
    if math.isfinite(rate := tokens_per_s(metrics)):
        facts.append(f"{rate:,.0f} tokens/s")
    if "staleness/mean" in metrics:
        mean, oldest = metrics["staleness/mean"], metrics["staleness/max"]
        facts.append(f"staleness {mean:.1f}, oldest {oldest:.0f} (bound {board.bound})")
    if "groups/playing" in metrics:
        facts.append(f"groups {metrics['groups/playing']:.0f} playing, {metrics.get('groups/ready', 0):.0f} ready")
    if "optimizer/loss" in metrics and not board.environments:
        facts.append(f"loss {board.recent('optimizer/loss'):.3f} {board.trend('optimizer/loss')}")
    if "probe/gap" in metrics:
        facts.append(f"probe gap {metrics['probe/gap']:.1e}")
    if board.num_trajectories:
        facts.append(f"{board.num_trajectories:,} trajectories")
    causes = {"groups/dropped": "groups dropped", "trajectories/failed/": "failed", "trajectories/forks": "forks"}
    facts += [f"{total:,} {name}" for prefix, name in causes.items() if (total := board.total(prefix))]
    if board.steps and board.num_evaluated:
        facts.append(f"evaluating {board.num_evaluated}/{board.num_evaluating}")
    return facts


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def step_line(board: Scoreboard) -> str:
    rates = [
        f"{name} {reward:.2f} ({_number(board.recent(f'train/success/{name}'), '.0%')})"
        for name in board.environments
        if (reward := board.recent(f"train/reward/{name}")) is not None
    ]
    scores = ["reward (success): " + ", ".join(rates)] if rates else []
    left = [f"{clock_text(board.left_s)} left"] if board.left_s else []
    return " · ".join([f"step {board.step}/{board.steps}", *scores, *_facts(board), *left])


def clock_text(seconds: float | None) -> str:
    """65 -> 1:05, 3700 -> 1:01:40."""
    minutes, rest = divmod(int(seconds or 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
