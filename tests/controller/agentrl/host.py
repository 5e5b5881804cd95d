"""AgentRL's own command line for every line of stdin: `NAME CONFIG CONTROLLER PORT`. Forked:
importing it takes seconds.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys

import agentrl.worker.config
import agentrl.worker.task_worker  # noqa: F401
import authored  # noqa: F401


def serve(name: str, config: str, controller: str, port: str) -> None:
    address = f"http://127.0.0.1:{port}/api"
    sys.argv = [
        "agentrl.worker",
        name,
        "-c",
        config,
        "-C",
        controller,
        "-s",
        address,
        "--host",
        "127.0.0.1",
        "-p",
        port,
    ]
    runpy.run_module("agentrl.worker", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for line in sys.stdin:
        if not line.strip():
            break
        if os.fork() == 0:
            serve(*line.split())
            os._exit(0)
    sys.stdin.read()  # ends when whoever started us is gone, however it went
    os.killpg(0, signal.SIGKILL)
