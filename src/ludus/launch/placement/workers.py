"""Local workers that a run starts and stops itself: a controller on loopback and processes that host the environments.

Promise: they are ready or the run does not begin, and then it says what they said; one that dies is started again; none outlives the run.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ludus.config import WORKERS, RunConfig, dump_config
from ludus.controller.client.client import TURN_S
from ludus.controller.client.remote import RemoteClient, RemoteSession
from ludus.errors import ControllerFailed, WorkerLost
from ludus.processes.child import Child
from ludus.types import Task

READY_S = 60.0
"""From the start of the processes until all environments are on offer; a worker may have to import and build a lot."""
POLL_S = 0.02
_URL = re.compile(r"http://127\.0\.0\.1:(\d+)")


class WorkersClient(RemoteClient):
    """A client with a controller and workers of its own; its close ends them."""

    def __init__(self, url: str, *, token: str, controller: Child, workers: list[Child], **settings: Any) -> None:
        super().__init__(url, token=token, **settings)
        self.address = (url, token)
        """For other processes of the run."""
        self.controller_process, self.worker_processes = controller, workers

    @classmethod
    async def start(cls, config: RunConfig, *, folder: Path, **settings: Any) -> Self:
        """Logs and the workers' run file go to `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        token = secrets.token_hex(16)
        environ = {"LUDUS_TOKEN": token, "LUDUS_RUN": config.name}
        controller = _controller(folder, environ)
        workers: list[Child] = []
        try:
            url = await _listening(controller, deadline_s=READY_S)
            controller.arguments = _on_port(controller.arguments, url)
            workers += [_worker(number, url, config, folder, environ) for number in range(config.workers.num)]
            client = cls(url, controller=controller, workers=workers, token=token, **settings)
            await client._begin(wanted={name for name, e in config.environments.items() if e.at == WORKERS})
        except BaseException:
            await _stop(controller, workers)
            raise
        return client

    async def open(self, task: Task, *, seed: int, timeout_s: float = TURN_S) -> RemoteSession:
        if self.controller_process.given_up:
            raise ControllerFailed(f"the run's own controller is gone: {self.controller_process.given_up}")
        if all(worker.given_up for worker in self.worker_processes):
            raise WorkerLost(f"all of the run's own workers are gone: {self.worker_processes[0].given_up}")
        return await super().open(task, seed=seed, timeout_s=timeout_s)

    async def close(self) -> None:
        await super().close()
        await _stop(self.controller_process, self.worker_processes)

    async def _begin(self, *, wanted: set[str]) -> None:
        for worker in self.worker_processes:
            await worker.start()

        async def ready() -> bool:
            await self.refresh()
            return wanted <= self.environments().keys()

        children = [self.controller_process, *self.worker_processes]
        try:
            await _until(ready, children=children, deadline_s=READY_S)
        except BaseException:
            await super().close()
            raise
        for child in children:
            child.keep()


def _controller(folder: Path, environ: dict[str, str]) -> Child:
    state = folder / "state"
    shutil.rmtree(state, ignore_errors=True)  # of the same run before it was resumed: its sessions ended with it
    arguments = ["serve", "controller", "--host", "127.0.0.1", "--port", "0", "--state", str(state), "--max-rate", "0"]
    arguments += ["--grace-s", "1"]  # on loopback a link breaks because its process died
    return Child("the run's controller", *arguments, log=folder / "controller.log", environ=environ)


def _on_port(arguments: tuple[str, ...], url: str) -> tuple[str, ...]:
    """Started again, it must be where everybody looks for it."""
    port = url.rpartition(":")[2]
    place = arguments.index("--port") + 1
    return (*arguments[:place], port, *arguments[place + 1 :])


def _worker(number: int, url: str, config: RunConfig, folder: Path, environ: dict[str, str]) -> Child:
    run_file = folder / "run.toml"
    run_file.write_text(dump_config(hosted_part(config)), encoding="utf-8")
    arguments = ("serve", "worker", "--run", str(run_file), "--controller", url, "--slots", str(config.workers.slots))
    return Child(f"worker {number}", *arguments, log=folder / f"worker-{number}.log", environ=environ)


def hosted_part(config: RunConfig) -> RunConfig:
    """What a worker has to know of the run: its environments. What else the run says may be about those that are elsewhere."""
    return RunConfig(environments={name: e for name, e in config.environments.items() if e.at == WORKERS})


async def _listening(controller: Child, *, deadline_s: float) -> str:
    await controller.start()
    found: list[str] = []

    async def ready() -> bool:
        found.extend(match.group(0) for match in _URL.finditer(controller.said()))
        return bool(found)

    await _until(ready, children=[controller], deadline_s=deadline_s)
    return found[0]


async def _until(ready: Callable[[], Any], *, children: list[Child], deadline_s: float) -> None:
    """Until `ready`, as long as all children are alive and the deadline is not over."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + deadline_s
    while not await ready():
        for child in children:
            if child.ended:
                raise ControllerFailed(f"the run's own workers did not start. {child.last_words()}")
        if loop.time() > give_up:
            words = "\n".join(child.last_words() for child in children)
            raise ControllerFailed(f"the run's own workers were not ready within {deadline_s:g} s.\n{words}")
        await asyncio.sleep(POLL_S)


async def _stop(controller: Child, workers: list[Child]) -> None:
    await asyncio.gather(*(worker.stop() for worker in workers))
    await controller.stop()
