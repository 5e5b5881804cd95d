"""The `ludus` command as the child of a run: `python -m ludus.cli.attached serve worker ...`.

Promise: it does not outlive the process that started it, however that one ends. Standard input is a pipe that only the parent holds: it
ends with the parent. Where the kernel can do the same (Linux), it is asked to, because a thread cannot run while other code keeps the GIL.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1


def main() -> None:
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    from ludus.cli.main import main as ludus

    ludus()


def _end_with_parent() -> None:
    while os.read(0, 1024):  # not sys.stdin: its lock would hold up a normal exit
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
