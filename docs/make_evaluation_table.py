"""The table of a model on all worlds, through our own endpoint: `python docs/make_evaluation_table.py > table.md`.

It does what a person would type, and nothing else:

    ludus models pull smollm2-135m
    ludus serve engine smollm2-135m rollout.max_tokens=2048 --port 7200
    ludus eval --model http://127.0.0.1:7200/v1 --tokenizer smollm2-135m --environments all --tasks 20

An evaluation that was stopped goes on when the same command is run again. With --into README.md the table replaces what stands there
between the markers `evaluation:table`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from ludus.evaluation.page import evaluation_table
from ludus.models.loading.known import KNOWN

LUDUS = [sys.executable, "-c", "from ludus.cli.main import main; main()"]
MARKERS = re.compile(r"(<!-- evaluation:table -->\n).*?(<!-- /evaluation:table -->)", re.DOTALL)


def main() -> None:
    given = _arguments()
    if given.model in KNOWN:
        subprocess.run([*LUDUS, "models", "pull", given.model], check=True, stdout=sys.stderr)
    limit = f"rollout.max_tokens={given.max_tokens}"
    server = subprocess.Popen(
        [*LUDUS, "serve", "engine", given.model, limit, "engine.threads=0", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line.startswith("Serving "):
            sys.exit("the endpoint did not start; its message is above")
        evaluate = [*LUDUS, "eval", "--model", line.split(" at ")[1].strip(), "--tokenizer", given.model]
        evaluate += [
            "--environments",
            given.environments,
            "--tasks",
            str(given.tasks),
            "--attempts",
            str(given.attempts),
        ]
        evaluate += [
            "--name",
            given.name,
            limit,
            f"rollout.max_turn_tokens={given.max_turn_tokens}",
            f"store.folder={given.folder}",
        ]
        subprocess.run(evaluate, check=True, stdout=sys.stderr)
    finally:
        server.terminate()
        server.wait(timeout=30)
    report = json.loads((Path(given.folder) / given.name / "evaluation.json").read_text(encoding="utf-8"))
    page = f"{evaluation_table(report)}\n\n{_words(report, given)}\n"
    print(page, end="")
    if given.into:
        _insert(Path(given.into), page)


def _words(report: dict[str, Any], given: argparse.Namespace) -> str:
    return (
        f"{report['model']} through `ludus serve engine`, in {report['words']}; split {report['split']}, "
        f"{given.tasks} tasks per world, {given.attempts} attempts, temperature {report['temperature']}, at most "
        f"{given.max_turn_tokens} tokens a turn and {given.max_tokens} a session. Success is pass@1 with its 95 % interval. "
        f"Sessions ended by: {_stops(report)}."
    )


def _stops(report: dict[str, Any]) -> str:
    """Of all worlds together, the commonest first."""
    counts = Counter[str]()
    for row in report["environments"]:
        counts.update(row["stops"])
    return ", ".join(f"{stop} {count}" for stop, count in counts.most_common())


def _insert(file: Path, page: str) -> None:
    text = file.read_text(encoding="utf-8")
    changed, count = MARKERS.subn(lambda found: f"{found[1]}{page}{found[2]}", text)
    if not count:
        sys.exit(
            f"{file} has no place for the table: <!-- evaluation:table --> and <!-- /evaluation:table --> on lines of their own"
        )
    file.write_text(changed, encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m", help="as for `ludus serve engine`")
    parser.add_argument("--environments", default="all", help="as for `ludus eval`")
    parser.add_argument("--tasks", type=int, default=20, help="per world")
    parser.add_argument("--attempts", type=int, default=1, help="per task")
    parser.add_argument("--max-tokens", type=int, default=2048, help="of a session")
    parser.add_argument("--max-turn-tokens", type=int, default=96, help="of a turn")
    parser.add_argument("--name", default="eval-worlds", help="of the evaluation's run")
    parser.add_argument("--folder", default="runs", help="where the run is made")
    parser.add_argument("--into", default="", help="a Markdown file with the markers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
