"""docs/metrics.md is the vocabulary of metrics: what the code writes is explained there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
FAMILIES = "train|staleness|probe|time|tokens|trajectories|groups|optimizer"
WRITERS = ("pipeline", "algorithms", "launch", "trainer")


def written() -> set[str]:
    """Metric names in string literals of the code that writes them, cut at the first placeholder: "train/reward/"."""
    text = "\n".join(path.read_text() for folder in WRITERS for path in (ROOT / "src" / "ludus" / folder).rglob("*.py"))
    names = re.findall(rf'"((?:{FAMILIES})/[a-z_/]*)', text)
    return {name for name in names if not name.endswith("optimizer/")}


def test_every_metric_that_is_written_is_explained():
    page = (ROOT / "docs" / "metrics.md").read_text()
    explained = set(re.findall(rf"`((?:{FAMILIES})/[a-z_/]*)", page))
    assert written()
    assert written() - explained == set()
