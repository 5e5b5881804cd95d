"""ScienceWorld's simulator in Java processes of its own.

Promise: every load of a variation is the same, in any process. A process serves one session at a
time and is kept for the next. What happens in it depends on experiment, variation and commands
alone: the package draws from its own seed, and no order depends on a hash (identity.py).
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

from ludus.errors import EnvironmentFailed
from ludus.sandboxes.owner import state_folder
from ludus.worlds.pool import Pool
from ludus.worlds.sciworld.identity import patched_classes

_JAVA = ["-Xmx256m", "-Xss2m", "-XX:+UseSerialGC", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2"]
"""A quarter of the default memory at the same speed; one hash for objects without their own."""


class Simulator:
    """A Java process, used by one session at a time. If it dies, the session fails."""

    def __init__(self) -> None:
        if shutil.which("java") is None:
            raise EnvironmentFailed("sciworld needs Java, which is not installed: apt-get install default-jre-headless")
        try:
            from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
            from scienceworld.constants import BASEPATH, JAR_PATH
        except ImportError as error:
            raise EnvironmentFailed(f'sciworld needs scienceworld ({error}): pip install "ludus[worlds]"') from None
        # py4j logs every connection that a killed process leaves open, with a traceback
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        # die_on_exit: Java ends when its input is closed, so also when this process is killed
        classes = os.pathsep.join([str(patched_classes(Path(JAR_PATH), cache=state_folder())), JAR_PATH])
        port, access_token, self.process = launch_gateway(
            classpath=classes, cwd=BASEPATH, javaopts=_JAVA, die_on_exit=True, enable_auth=True, return_proc=True
        )
        parameters = GatewayParameters(port=port, auth_token=access_token, auto_field=True, auto_convert=True)
        self._gateway = JavaGateway(gateway_parameters=parameters, java_process=self.process)
        # else it prints kilobytes a turn into a pipe; must precede the loading of its first class
        self._gateway.jvm.java.lang.System.setOut(self._gateway.jvm.java.io.PrintStream(os.devnull))
        self._server = self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def load(self, experiment: str, variation: int, *, gold: bool = False) -> None:
        self.call("load", experiment, variation, "", gold)  # `reset` would load it again

    def call(self, name: str, *arguments: Any) -> Any:
        from py4j.protocol import Py4JError

        try:
            return getattr(self._server, name)(*arguments)
        except (Py4JError, OSError) as error:
            self.end()  # its state is unknown: no session gets it again
            raise EnvironmentFailed(f"sciworld's Java process failed at {name}: {str(error)[:200]}") from None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self._gateway._gateway_client.is_connected = False  # or py4j's collector calls it, and logs the failure


POOL = Pool(Simulator)
