"""Trackers send a run's numbers to other systems."""
