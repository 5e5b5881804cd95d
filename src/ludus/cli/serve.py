"""`ludus serve`: the controller, which places sessions, and the workers, which host them."""

from __future__ import annotations

import typer

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Serve environments to other processes and machines."
)


@app.command()
def controller(
    host: str = typer.Option("127.0.0.1", help="Address to listen on; beyond loopback, tokens are required."),
    port: int = typer.Option(
        7100, min=0, max=65535, help="0 takes a free one; the line printed when ready says which."
    ),
    state: str = typer.Option("", help="Folder of the state that survives a restart; empty: nothing does."),
    tokens: str = typer.Option(
        "", help="File of lines `name token [expires]`; else LUDUS_TOKEN. Re-read when it changes."
    ),
    max_request_mb: float = typer.Option(16.0, help="A larger request is refused with 413."),
    max_rate: float = typer.Option(10_000.0, min=0, help="Calls per second and client, 429 beyond; 0: no limit."),
    heartbeat_s: float = typer.Option(5.0, help="A worker silent for three of these is lost."),
    grace_s: float = typer.Option(
        5.0, help="How long a worker whose link broke may stay away before its sessions end as failed."
    ),
) -> None:
    """Serve the controller: clients open sessions, it places them on workers that register here."""
    from ludus.controller.server import Settings
    from ludus.controller.serving import serve_controller

    serve_controller(
        Settings(
            host=host,
            port=port,
            state=state,
            tokens=tokens,
            max_request_bytes=int(max_request_mb * 2**20),
            max_rate=max_rate,
            heartbeat_s=heartbeat_s,
            grace_s=grace_s,
        )
    )


@app.command()
def worker(
    environments: list[str] = typer.Argument(help="Names of environments, or module:Class, or file.py."),
    controller: str = typer.Option("http://127.0.0.1:7100", help="URL of the controller to register with."),
    slots: int = typer.Option(64, min=1, help="Sessions at once, of all its environments together."),
    host: str = typer.Option("127.0.0.1", help="Address to listen on for clients' turns."),
    port: int = typer.Option(0, min=0, max=65535, help="0 takes a free one."),
) -> None:
    """Serve a worker: it hosts sessions of these environments and registers with a controller. SIGTERM drains it."""
    from ludus.controller.worker import serve_worker

    serve_worker(environments, controller=controller, slots=slots, host=host, port=port)
