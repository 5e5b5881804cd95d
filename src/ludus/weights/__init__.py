"""How a version travels from trainer to engine: in memory, or as files."""

from ludus.weights.channel import Channel, Snapshot, Source
from ludus.weights.folder import FolderChannel
from ludus.weights.memory import MemoryChannel

__all__ = ["Channel", "FolderChannel", "MemoryChannel", "Snapshot", "Source"]
