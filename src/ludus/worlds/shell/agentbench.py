"""AgentBench's operating-system items as problems of the shell world.

Promise: an item is loaded whole, or left out and named in the log. `dev.json` is dev, the numbered
folders are test, train is empty. Items are written for root in a container of its own, and a third
write to /usr, /root or /. In a sandbox that forbids it their init script fails, and the session
with it, unscored. Those that keep to their own folder (nearly all of folder 7) run anywhere.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.sandboxes.sandbox import Limits, Sandbox
from ludus.worlds.files import read_json
from ludus.worlds.shell.problems import BASH

MAX_ANSWER_CHARS = 10_000
_CHECK = Limits(time_s=20)
_COMMON = {
    "check/integer-match.py": "import sys; sys.exit(int(sys.argv[1]) != int(sys.argv[2]))",
    "check/string-match.py": "import sys; sys.exit(sys.argv[1].strip() != sys.argv[2].strip())",
}
"""Checks that most items name, for use without AgentBench's folder of scripts."""
_log = logging.getLogger(__name__)


def load(path: str, *, split: str) -> list[dict[str, Any]]:
    """The items of a split. ValueError if `path` cannot be read."""
    root = Path(path)
    if not root.exists():
        raise ValueError(f"items: {path!r} does not exist; expected AgentBench's data/os_interaction or a JSON file")
    tasks: dict[str, dict[str, Any]] = {}
    refused = []
    for file in _files(root, split=split):
        rows = read_json(file, option="items")
        for row in rows if isinstance(rows, list) else [rows]:
            try:
                task = _task(row, scripts=_scripts(file))
                tasks.setdefault(task["id"], task)
            except (LookupError, TypeError, AttributeError) as error:
                refused.append(f"{file.name}: {error}")
    if refused:
        _log.warning("%d of AgentBench's items are left out, e.g. %s", len(refused), refused[0])
    return list(tasks.values())


def asks(evaluation: Mapping[str, Any]) -> bool:
    """Whether the item asks for an answer, rather than for a state of the system."""
    return evaluation["match"] is not None or any(script is None for script in evaluation["checks"])


def is_right(evaluation: Mapping[str, Any], *, answer: str, sandbox: Sandbox) -> bool:
    if evaluation["match"] is not None:
        return _matches(evaluation["match"], answer)
    given = [answer]
    for script in evaluation["checks"]:
        done = sandbox.run([*(script or evaluation["example"]), *given], limits=_CHECK)
        if not done.ok:
            return False
        given.append(done.stdout)
    return True


def _matches(match: Mapping[str, Any], answer: str) -> bool:
    strip = str.strip if match.get("strip", True) else str
    if "regex" in match:
        return re.match(match["regex"], strip(answer)) is not None
    return strip(answer) == strip(str(match["answer"]))


def _files(root: Path, *, split: str) -> list[Path]:
    if root.is_file():
        return [root] if split == "test" else []
    data = root / "data" if (root / "data").is_dir() else root
    found = {"dev": data.glob("dev.json"), "test": data.glob("[0-9]/*.json")}
    return sorted(found.get(split, ()))


def _scripts(file: Path) -> Path:
    """A file's scripts: scripts/4 for data/4/x.json, scripts/dev for data/dev.json."""
    if file.parent.name.isdigit():
        return file.parents[2] / "scripts" / file.parent.name
    return file.parents[1] / "scripts" / file.stem


def _task(row: Mapping[str, Any], *, scripts: Path) -> dict[str, Any]:
    evaluation, create = row["evaluation"], row.get("create") or {}
    example = evaluation.get("example")
    checks = evaluation.get("check", [])
    match = evaluation.get("match")
    graded = {
        "match": {"answer": match} if isinstance(match, str) else match,
        "checks": [_command(one, scripts=scripts) for one in (checks if isinstance(checks, list) else [checks])],
        "example": _command(example, scripts=scripts),
    }
    if graded["match"] is None and not graded["checks"]:
        raise LookupError(f"no match and no check in {sorted(evaluation)}")
    return {
        "id": hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:12],
        "family": ",".join(row.get("labels", ())),
        "description": row["description"],
        "init": _text(create.get("init"), scripts=scripts),
        "start": _text(row.get("start"), scripts=scripts),
        "gold": _text(example, scripts=scripts),
        "evaluation": graded,
    }


def _command(script: Any, *, scripts: Path) -> list[str] | None:
    if script is None:
        return None
    text = _text(script, scripts=scripts)
    is_python = isinstance(script, dict) and script.get("language") == "python"
    return ["python3", "-I", "-c", text] if is_python else [*BASH, text, "check"]


def _text(script: Any, *, scripts: Path) -> str:
    if script is None:
        return ""
    if isinstance(script, str):
        return script
    if isinstance(script, list):
        return "\n".join(_text(one, scripts=scripts) for one in script)
    if "code" in script:
        return str(script["code"])
    name = str(script["file"])
    if (scripts / name).is_file():
        return (scripts / name).read_text()
    if name in _COMMON:
        return _COMMON[name]
    raise LookupError(f"script {name} is not in {scripts}")
