"""The run folder: config, metrics, events and trajectories. Promise: no later crash loses a written line."""
