"""The Trainer role, its implementation for one process, behaviour cloning, and checkpoints."""

from ludus.trainer.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint, save_checkpoint
from ludus.trainer.local import LocalTrainer
from ludus.trainer.threaded import ThreadedTrainer
from ludus.trainer.trainer import Trainer

__all__ = [
    "Checkpoint",
    "LocalTrainer",
    "ThreadedTrainer",
    "Trainer",
    "latest_checkpoint",
    "load_checkpoint",
    "save_checkpoint",
]
