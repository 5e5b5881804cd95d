"""Every knob of a run, one typed tree. `run.py` holds the whole tree and the reader of run files."""

from ludus.config.run import *  # noqa: F403
