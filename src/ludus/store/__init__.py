"""The run folder. Promise: no later crash loses a written line."""
