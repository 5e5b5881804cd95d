"""[environments.NAME], [workers] and [controller]: what is played, and where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from ludus.config.section import Section
from ludus.errors import nearest

HERE, WORKERS = "here", "workers"
SandboxKind = Literal["none", "process", "namespace", "container"]
"""What a session's untrusted code runs in, from the least contained to the most."""


class EnvironmentConfig(Section):
    source: str = ""
    """Where the environment class is: module:Class, file.py or file.py:Class. Empty: the section's
    name is a registered environment."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the groups, relative to the other environments."""
    max_turns: int | None = Field(default=None, gt=0)
    """Overrides rollout.max_turns for this environment. Unset: rollout.max_turns."""
    options: dict[str, Any] = {}
    """Arguments of the environment's constructor. At a controller they must equal its workers'."""
    at: str = HERE
    """Where sessions run: here (this process, or pipeline.session_processes), workers (processes
    that the run starts and stops), or a controller's URL."""
    sandbox: SandboxKind = "none"
    """Least sandbox for untrusted code. An environment that declares a stronger one gets that."""
    image: str = ""
    """Container image, in place of the environment's own. Empty: the environment's own."""

    def problems(self) -> Iterator[str]:
        remote = self.at.startswith(("http://", "https://"))
        if self.at not in (HERE, WORKERS) and not remote:
            yield (
                f"at is {self.at!r}; expected '{HERE}', '{WORKERS}' or a controller's URL such as "
                f"http://127.0.0.1:7100.{nearest(self.at, (HERE, WORKERS))}"
            )
        if remote and "@" in self.at:
            yield "at holds a password, which would be stored with the run; use controller.token_file"
        for key in ("image", "source"):
            if remote and getattr(self, key):
                yield f"{key} is {getattr(self, key)!r} with at {self.at!r}, whose workers have their own; leave it out"


class WorkersConfig(Section):
    num: int = Field(default=1, gt=0)
    """Number of worker processes for environments with at = "workers"."""
    slots: int = Field(default=256, gt=0)
    """Sessions that one worker runs at once. Further sessions wait for a free slot."""


class ControllerConfig(Section):
    token_file: str = ""
    """File with the access token for controllers. Empty: LUDUS_TOKEN, if it is set."""
    wait_s: float = Field(default=300.0, gt=0)
    """Seconds that a session waits for a free slot of a worker before it fails."""
