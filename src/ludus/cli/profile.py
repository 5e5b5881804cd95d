"""`ludus profile RUN`: where the time of a run goes."""

from __future__ import annotations

from ludus.cli.options import Run


def profile(run: Run) -> None:
    """Show where the time of a run goes, its speed and its bottleneck.

    Also draws the timeline to RUN/plots/timeline.png. Works during the run.
    """
    from ludus.errors import ConfigError
    from ludus.reports.profile import draw_timeline, figures, timeline_text
    from ludus.reports.profile import profile as profile_of
    from ludus.store.run_folder import RunFolder

    folder = RunFolder.open(run)
    made = profile_of(folder)
    if made is None:
        raise ConfigError(
            f"{folder.path} has no timeline yet; `ludus train` writes one line per second of training to it"
        )
    rows = figures(made)
    width = max((len(name) for name, _ in rows), default=0)
    print(timeline_text(made))
    print()
    print("\n".join(f"{name:{width}}  {value}" for name, value in rows))
    print(f"\n{made.verdict.text}\n", flush=True)  # before the plot: the folder may not be writable
    print(draw_timeline(made, into=folder.plots))
