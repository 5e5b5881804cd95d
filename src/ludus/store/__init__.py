"""The run folder: config, metrics, events, trajectories, report. Promise: a line once written is never lost by a later crash."""
