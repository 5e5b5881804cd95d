"""Trackers send a run's numbers to other systems. Promise: a tracker that fails never ends a run."""
