"""Several of AgentRL's workers in one process, for importing their package takes seconds. Arguments: controller, then NAME=PORT each."""

from __future__ import annotations

import sys
import threading

import authored
from agentrl.worker.task_worker import TaskWorker

TASKS = {
    "shelf": lambda: authored.Shelf(name="shelf", concurrency=1),
    "deaf": lambda: authored.Deaf(name="deaf", concurrency=2),
    "sleeper": lambda: authored.Sleeper(name="sleeper", concurrency=1),
    "polite": lambda: authored.Polite(name="polite", concurrency=1),
    "many-env_train": lambda: authored.Double(name="many-env_train", num_tasks=11_000, concurrency=4),
    "worded": lambda: authored.Double(name="worded", strings=True, concurrency=2),
}


def serve(name: str, port: int, controller: str) -> None:
    worker = TaskWorker(TASKS[name](), controller, f"http://127.0.0.1:{port}/api", heart_rate=1)
    worker.run(host="127.0.0.1", port=port)


if __name__ == "__main__":
    controller, *wanted = sys.argv[1:]
    for each in wanted:
        name, port = each.split("=")
        threading.Thread(target=serve, args=(name, int(port), controller), daemon=True).start()
    threading.Event().wait()
