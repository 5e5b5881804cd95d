"""A controller on loopback and workers that host environments, as processes of a run.

Promise: all are ready or the run does not begin, and the error shows their logs; one that ends
is restarted; none outlives the run.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

from ludus.config import WORKERS, RunConfig, dump_config
from ludus.controller.client.client import TURN_S
from ludus.controller.client.remote import RemoteClient, RemoteSession
from ludus.errors import ControllerFailed, WorkerLost
from ludus.processes.supervisor import Process, Supervisor
from ludus.types import Task

READY_S = 60.0
"""Until all environments are on offer: a worker may import and build a lot."""
POLL_S = 0.02
_URL = re.compile(r"http://127\.0\.0\.1:(\d+)")


class WorkersClient(RemoteClient):
    """A client with a controller and workers of its own; its close ends them."""

    def __init__(self, url: str, *, token: str, processes: list[Process], **settings: Any) -> None:
        super().__init__(url, token=token, **settings)
        self.address = (url, token)
        """For other processes of the run."""
        self.controller_process, *self.worker_processes = self._processes = processes

    @classmethod
    async def start(cls, config: RunConfig, *, folder: Path, **settings: Any) -> Self:
        """Logs and the workers' run file go to `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        token, supervisor = secrets.token_hex(16), Supervisor()
        environ = {"LUDUS_TOKEN": token, "LUDUS_RUN": config.name}
        wanted = {name for name, section in config.environments.items() if section.at == WORKERS}
        started: list[Process] = []
        client: Self | None = None

        async def start(name: str, log: str, *arguments: str) -> Process:
            command = (sys.executable, "-m", "ludus.cli.attached", "serve", *arguments)
            started.append(await Process(supervisor, name, command, environ, log=folder / log).start())
            return started[-1]

        async def listening() -> re.Match[str] | None:
            return _URL.search(controller.output())

        async def ready() -> bool:
            assert client is not None
            await client.refresh()
            return wanted <= client.environments().keys()

        try:
            state = folder / "state"
            shutil.rmtree(state, ignore_errors=True)  # of a run that is resumed: its sessions ended
            # on loopback a connection breaks because its process ended, so a short grace is enough
            place = ("--host", "127.0.0.1", "--state", str(state), "--max-rate", "0", "--grace-s", "1", "--port")
            controller = await start("the run's controller", "controller.log", "controller", *place, "0")
            url = (await _until(listening, processes=[controller])).group(0)
            # restarted, it must be found at the same port
            controller.command = (*controller.command[:-1], url.rpartition(":")[2])
            run_file = folder / "run.toml"
            run_file.write_text(dump_config(hosted_part(config)), encoding="utf-8")
            options = ("--run", str(run_file), "--controller", url, "--slots", str(config.workers.slots))
            for number in range(config.workers.num):
                await start(f"worker {number}", f"worker-{number}.log", "worker", *options)
            client = cls(url, processes=started, token=token, **settings)
            await _until(ready, processes=started)
        except BaseException:
            await (_stop(started) if client is None else client.close())
            raise
        for process in started:
            process.keep_running()
        return client

    async def open(self, task: Task, *, seed: int, timeout_s: float = TURN_S) -> RemoteSession:
        if self.controller_process.given_up:
            raise ControllerFailed(f"the run's own controller is gone: {self.controller_process.given_up}")
        if all(worker.given_up for worker in self.worker_processes):
            raise WorkerLost(f"all of the run's own workers are gone: {self.worker_processes[0].given_up}")
        return await super().open(task, seed=seed, timeout_s=timeout_s)

    async def close(self) -> None:
        await super().close()
        await _stop(self._processes)


def hosted_part(config: RunConfig) -> RunConfig:
    """What workers need of a run: other sections may name environments that are elsewhere."""
    return RunConfig(environments={name: e for name, e in config.environments.items() if e.at == WORKERS})


async def _until(ready: Callable[[], Awaitable[Any]], *, processes: list[Process]) -> Any:
    """Waits for `ready`; raises if a process ends before, or after READY_S."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + READY_S
    while not (answer := await ready()):
        for process in processes:
            if process.returncode is not None:
                raise ControllerFailed(f"the run's own workers did not start. {process.explain()}")
        if loop.time() > give_up:
            explained = "\n".join(process.explain() for process in processes)
            raise ControllerFailed(f"the run's own workers were not ready within {READY_S:g} s.\n{explained}")
        await asyncio.sleep(POLL_S)
    return answer


async def _stop(processes: list[Process]) -> None:
    """The workers first, which say goodbye to the controller."""
    await asyncio.gather(*(worker.stop() for worker in processes[1:]))
    for controller in processes[:1]:
        await controller.stop()
        controller.supervisor.close()
