"""`ludus profile RUN`: where a run's time goes. Reads the run folder alone, so also of a run that is still going."""

from __future__ import annotations

from typing import Annotated

import typer

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or its name under runs/.", show_default=False)]


def profile(run: Run) -> None:
    """Show a run's timeline (also as plots/timeline.png), its speed, and what holds it up."""
    from ludus.errors import ConfigError
    from ludus.reports.profile import draw_timeline, figures, timeline_text
    from ludus.reports.profile import profile as profile_of
    from ludus.store.run_folder import RunFolder

    folder = RunFolder.open(run)
    made = profile_of(folder)
    if made is None:
        raise ConfigError(
            f"{folder.path} has no timeline: `ludus train` writes one line per second of training to timeline.jsonl, and it has none"
        )
    rows = figures(made)
    width = max((len(name) for name, _ in rows), default=0)
    print(timeline_text(made))
    print()
    print("\n".join(f"{name:{width}}  {value}" for name, value in rows))
    print(f"\n{made.verdict.text}\n", flush=True)  # told before it is drawn: the folder may be somebody else's
    print(draw_timeline(made, into=folder.plots))
