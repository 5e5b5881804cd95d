"""The `ludus` command as the child of another process: `python -m ludus.cli.attached serve worker
...`.

Promise: it does not outlive its parent, however that ends. Standard input is a pipe that only
the parent holds and that ends with it; the kernel kills this process too, because a thread waits
for the interpreter's lock.
"""

from __future__ import annotations

import os
import threading

from ludus.processes.parent import die_with


def main() -> None:
    threading.Thread(target=_end_with_input, name="parent", daemon=True).start()
    die_with(os.getppid())

    from ludus.cli.main import main as ludus

    ludus()


def _end_with_input() -> None:
    while os.read(0, 1024):  # not sys.stdin: its lock would hold up a normal exit
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
