"""How a version travels from trainer to engine: in memory, or as files."""

from ludus.weights.channel import Channel
from ludus.weights.disk import DiskChannel
from ludus.weights.memory import MemoryChannel

__all__ = ["Channel", "DiskChannel", "MemoryChannel"]
