"""Batches in, versions out: the trainer, behaviour cloning on the same machinery, and checkpoints."""

from ludus.trainer.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint, save_checkpoint
from ludus.trainer.sft import clone
from ludus.trainer.trainer import Trainer

__all__ = ["Checkpoint", "Trainer", "clone", "latest_checkpoint", "load_checkpoint", "save_checkpoint"]
