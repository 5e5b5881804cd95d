"""`ludus models`: known models, and fetching them."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, help="List and pull known models.")


@app.command("list")
def list_models() -> None:
    """List known models and those on this machine."""
    from rich.console import Console
    from rich.table import Table

    from ludus.models.loading.known import KNOWN, models_folder, pulled_models

    here = set(pulled_models())
    table = Table("name", "parameters", "licence", "from", "here", box=None, pad_edge=False)
    for model in KNOWN.values():
        table.add_row(model.name, model.size, model.licence, model.source, "yes" if model.name in here else "")
    for name in sorted(here - set(KNOWN)):
        table.add_row(name, "", "", str(models_folder() / name), "yes")
    console = Console()
    console.print(table)
    console.print("\nmodel.name also takes a folder, a run folder (its export), or a hub name (owner/name).")


@app.command()
def pull(name: str = typer.Argument(help="Name of the model, from `ludus models list`.")) -> None:
    """Fetch a known model and print its folder."""
    from ludus.models.loading.pull import pull as fetch

    print(fetch(name, tell=lambda line: typer.echo(line, err=True)))
