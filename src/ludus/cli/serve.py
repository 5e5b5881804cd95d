"""`ludus serve`: a controller, a worker for it, or a model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ludus.environments import Environment

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Serve environments or a model to other processes.")
_port = partial(typer.Option, min=0, max=65535, help="Port; 0 takes a free one, named in the line printed when ready.")

SERVED = ("model.", "engine.", "devices", "rollout.max_tokens")
"""Keys of a run file that `ludus serve engine` reads."""


@app.command()
def controller(
    host: str = typer.Option("127.0.0.1", help="Address to listen on; beyond loopback, access tokens are required."),
    port: int = _port(7100),
    state: str = typer.Option("", help="Folder for the state that survives a restart; empty: keep none."),
    tokens: str = typer.Option(
        "",
        help="File of access tokens, lines of `name token [expires]`, read again when it changes; default: LUDUS_TOKEN.",
    ),
    max_request_mb: float = typer.Option(16.0, help="Largest request in MB; larger ones get status 413."),
    max_rate: float = typer.Option(
        10_000.0, min=0, help="Calls per second and client; more get status 429. 0: no limit."
    ),
    heartbeat_s: float = typer.Option(5.0, help="Seconds between heartbeats; a worker that misses three is lost."),
    grace_s: float = typer.Option(5.0, help="Seconds for a disconnected worker to return before its sessions fail."),
    agentrl_grpc_port: int | None = _port(None, help="Loopback port for AgentRL workers by gRPC; 0 takes a free one."),
) -> None:
    """Serve a controller. Workers register with it, and it places sessions on them."""
    from ludus.controller.service.server import Settings
    from ludus.controller.service.serving import serve_controller

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
            agentrl_grpc_port=agentrl_grpc_port,
        )
    )


@app.command()
def worker(
    environments: list[str] = typer.Argument(
        None, help="Names of environments, or module:Class, file.py or file.py:Class.", show_default=False
    ),
    run: str = typer.Option("", "--run", help="Run file; serves its environments not `here`, with their options."),
    controller: str = typer.Option("http://127.0.0.1:7100", help="URL of the controller to register with."),
    slots: int = typer.Option(64, min=1, help="Concurrent sessions of all its environments together."),
    host: str = typer.Option("127.0.0.1", help="Address on which clients reach this worker for turns."),
    port: int = _port(0, help="Port for clients; 0 takes a free one."),
    token: str = typer.Option("", envvar="LUDUS_TOKEN", help="Access token for the controller, if it requires one."),
    drain_s: float = typer.Option(600.0, min=0, help="Seconds that running sessions may continue after SIGTERM."),
    process_sessions: int = typer.Option(
        100, min=1, help="Sessions after which the process of an isolated environment is replaced."
    ),
    process_mb: float = typer.Option(
        1024.0, min=1, help="MiB beyond which such a process is replaced after its session; at twice that it is killed."
    ),
) -> None:
    """Serve a worker, which hosts sessions for a controller. SIGTERM drains it."""
    from ludus.controller.worker.worker import serve_worker
    from ludus.hosting.process_pool import PoolLimits

    hosted = _made(environments or [], run=run)
    limits = PoolLimits(max_processes=slots, max_sessions=process_sessions, max_bytes=int(process_mb * 2**20))
    serve_worker(
        hosted,
        controller=controller,
        slots=slots,
        token=token,
        host=host,
        port=port,
        drain_s=drain_s,
        pool_limits=limits,
    )


def _made(names: list[str], *, run: str) -> list[Environment]:
    from ludus.config import HERE, load_config
    from ludus.environments.registry import locate, make
    from ludus.errors import ConfigError
    from ludus.launch.environments import make_environments

    if bool(names) == bool(run):
        raise ConfigError(
            f"got environments {names} and --run {run!r}; give one of the two, as in `ludus serve worker guess`"
        )
    if names:
        return [make(name, source=source) for name, source in map(locate, names)]
    config = load_config(run)
    hosted = make_environments(config, at={section.at for section in config.environments.values()} - {HERE})
    if not hosted:
        raise ConfigError(
            f"all environments of {run!r} run in the trainer; set at = 'workers' or a URL for one of them"
        )
    return list(hosted.values())


@app.command()
def engine(
    model: str = typer.Argument(help="A folder (such as a run's export), a hub name, or a pulled model."),
    overrides: list[str] = typer.Argument(None, help="Keys of a run file, e.g. engine.max_running=32."),
    host: str = typer.Option("127.0.0.1", help="Address to listen on; beyond loopback, LUDUS_API_KEY must be set."),
    port: int = _port(7200),
) -> None:
    """Serve a model behind an OpenAI-compatible endpoint, with the embedded engine."""
    from ludus.config import load_config
    from ludus.errors import ConfigError
    from ludus.launch.serving.endpoint import serve_engine

    for key in (override.partition("=")[0].strip() for override in overrides or ()):
        if not key.startswith(SERVED):
            raise ConfigError(
                f"{key} does not apply to serving a model, because requests choose the sampling; expected one of "
                f"{', '.join(SERVED)}"
            )
    serve_engine(load_config(None, [f"model.name={model}", *(overrides or [])]), host=host, port=port)
