"""Problems of the shell world. Promise: all names are plain words, so no script needs quoting."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ludus.worlds.files import word_lists

_LISTS = word_lists("shell")
BASH = ("bash", "--norc", "--noprofile", "-c")
"""Runs a script. Without --norc, bash reads the agent's .bashrc if its input is a socket."""


@dataclass(frozen=True)
class Problem:
    """`init` prepares the sandbox; `start` runs in the agent's own shell. Graded by `answer` or, if
    it is empty, by the exit code of the script `check`. `gold` solves it, or prints the answer."""

    family: str
    description: str
    gold: str
    init: str = ""
    start: str = ""
    answer: str = ""
    check: str = ""

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def words(rng: random.Random, count: int) -> list[str]:
    return rng.sample(_LISTS["words"], count)


def names(rng: random.Random, count: int) -> list[str]:
    return rng.sample(_LISTS["names"], count)


def write(files: Mapping[str, str]) -> str:
    """A script that writes these files and their folders."""
    lines = []
    for path, text in files.items():
        folder, _, _ = path.rpartition("/")
        lines += [f"mkdir -p {folder}"] * bool(folder)
        lines.append(f"cat > {path} <<'END'\n{text.rstrip()}\nEND" if text else f": > {path}")
    return "\n".join(lines)


def same(files: Mapping[str, str]) -> str:
    """A script that fails unless each of these files has exactly this content."""
    lines = [
        f"cmp -s {path} - <<'END' || exit 1\n{text.rstrip()}\nEND"
        if text
        else f"[ -f {path} ] && [ ! -s {path} ] || exit 1"
        for path, text in files.items()
    ]
    return "\n".join(lines)


def only(folder: str, files: list[str]) -> str:
    """A script that fails unless these are all the files below `folder`."""
    listed = "\n".join(sorted(files))
    return f'[ "$(cd {folder} && find . -type f | sed "s|^./||" | LC_ALL=C sort)" = "{listed}" ] || exit 1'
