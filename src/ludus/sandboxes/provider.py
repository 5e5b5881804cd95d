"""Starts sandboxes and ends them. Promise: its sandboxes are gone when it is closed or its process
ends.

One per process that hosts sessions. With the first sandbox the process becomes an owner (owner.py)
and starts to remove what dead owners left, every SWEEP_S.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError, LudusError, SandboxFailed
from ludus.sandboxes import detect, reaper
from ludus.sandboxes.container import ContainerSandbox
from ludus.sandboxes.docker_api import DockerApi
from ludus.sandboxes.namespace import NamespaceInit, NamespaceSandbox
from ludus.sandboxes.owner import Owner, state_folder, write_label
from ludus.sandboxes.pool import Pool
from ludus.sandboxes.process import ProcessSandbox
from ludus.sandboxes.sandbox import Label, Need, Sandbox, kind_of

SWEEP_S = 30.0
WARM = 2
"""Containers started ahead per image; other kinds start in milliseconds."""
Started = ProcessSandbox | NamespaceSandbox | ContainerSandbox
_log = logging.getLogger(__name__)


def need_of(declared: Any, *, image: str = "") -> Need:
    """The Need that an environment declares, maybe as a name. `image` applies if it has none."""
    need = declared if isinstance(declared, Need) else Need(kind_of(str(declared)))
    return dataclasses.replace(need, image=need.image or image)


class Sandboxes:
    def __init__(self, *, run: str = "", state: Path | None = None, warm: int = WARM) -> None:
        """`run` is part of every label; empty: LUDUS_RUN, which a run sets for its workers."""
        self._run, self._given_state, self._warm = run or os.environ.get("LUDUS_RUN", ""), state, warm
        self._lock = threading.RLock()
        self._owner: Owner | None = None
        self._init: NamespaceInit | None = None
        self._api: DockerApi | None = None
        self._pool: Pool[Started] = Pool(self._make, size=warm)
        self._live: dict[str, Started] = {}
        self._stop = threading.Event()

    def require(self, need: Need) -> None:
        """Raises ConfigError if this machine cannot provide `need`; starts the reaper."""
        driver = detect.driver(need.kind)
        if not driver.works:
            raise ConfigError(f"sandbox {need.kind!r} does not work on this machine: {driver.says}. {driver.remedy}")
        if need.kind == "container" and not need.image:
            raise ConfigError("sandbox 'container' needs an image; set `image` in the class or in the run file")
        if need.kind == "container" and not self._container_api().has_image(need.image):
            raise ConfigError(f"the container service has no image {need.image!r}; pull or build it first")
        self._begin()

    def open(self, need: Need | str, *, image: str = "", session: str = "") -> Sandbox:
        """A started sandbox; the caller closes it."""
        need = need_of(need, image=image)
        self._begin()
        sandbox = self._pool.take(need) if need.kind == "container" and self._warm else self._make(need)
        label = dataclasses.replace(sandbox.label, run=self._run, session=session)
        write_label(self._begin().state, label, kind=sandbox.kind)
        return sandbox

    def close(self) -> None:
        with ThreadPoolExecutor(max_workers=8) as several:  # removing a container takes a while
            self._close(several.map)
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        """One at a time: an interpreter that exits starts no new threads."""
        self._close(map)

    def _close(self, on_each: Callable[..., Iterable[None]]) -> None:
        with self._lock:
            self._stop.set()
            self._pool.close()
            list(on_each(_quietly, [sandbox.close for sandbox in self._live.values()]))
            if self._init is not None:
                self._init.close()
            if self._api is not None:
                self._api.close()
            if self._owner is not None:
                self._owner.release()
            self._owner = self._init = self._api = None

    def sweep(self, owner: Owner | None = None) -> list[str]:
        def live() -> set[str]:
            return {each for each, sandbox in self._live.items() if not sandbox.closed}

        owner = owner or self._begin()
        removed = reaper.sweep(owner.state, own=owner.id, live=live, api=self._sweepable())
        if removed:
            _log.info("removed what dead owners left: %s", ", ".join(removed))
        return removed

    def _make(self, need: Need) -> Started:
        owner = self._begin()
        label = owner.label(run=self._run)
        sandbox = self._build(need, label, state=owner.state)
        with self._lock:
            # a new dict: the reaper may be reading; before start: it must spare what start makes
            self._live = {each: live for each, live in self._live.items() if not live.closed} | {label.id: sandbox}
        try:
            sandbox.start()
        except BaseException:
            _quietly(sandbox.close)
            raise
        return sandbox

    def _build(self, need: Need, label: Label, *, state: Path) -> Started:
        if need.kind == "process":
            return ProcessSandbox(label, state=state)
        if need.kind == "namespace":
            return NamespaceSandbox(label, state=state, init=self._find_init, need=need)
        if need.kind == "container":
            return ContainerSandbox(label, state=state, api=self._container_api(), need=need)
        raise ConfigError("sandbox is 'none'; expected process, namespace or container")

    def _begin(self) -> Owner:
        with self._lock:
            if self._owner is None:
                self._stop = threading.Event()
                self._owner = Owner(self._given_state or state_folder())
                atexit.register(self._close_at_exit)
                threading.Thread(target=self._keep_sweeping, args=(self._stop,), name="reaper", daemon=True).start()
            return self._owner

    def _keep_sweeping(self, stop: threading.Event) -> None:
        while not stop.is_set():
            if (owner := self._owner) is not None:
                _quietly(partial(self.sweep, owner), unless=stop)
            stop.wait(SWEEP_S)

    def _find_init(self) -> NamespaceInit:
        with self._lock:
            if self._init is None or not self._init.alive:
                self._init = NamespaceInit(mark=self._begin().id)
            return self._init

    def _container_api(self) -> DockerApi:
        with self._lock:
            if self._api is None:
                socket = detect.container_socket()
                if socket is None:
                    raise SandboxFailed(f"no container service: {detect.driver('container').says}")
                self._api = DockerApi(socket)
            return self._api

    def _sweepable(self) -> DockerApi | None:
        with self._lock:
            if self._stop.is_set() or (self._api is None and detect.container_socket() is None):
                return None
            return self._container_api()


def _quietly(work: Callable[[], Any], *, unless: threading.Event | None = None) -> None:
    """Logs a failure of `work`, `unless` the provider was closed meanwhile."""
    try:
        work()
    except (LudusError, OSError) as error:
        if unless is not None and unless.is_set():
            return
        _log.warning("cannot remove a sandbox, the next sweep tries again: %s", error)
