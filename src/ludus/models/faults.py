"""What an error of a GPU means. Promise: memory that ran out is told from a device that is gone, whichever library noticed."""

from __future__ import annotations

import torch

_LOST = ("CUDA error: ", "Triton Error [CUDA]: ")
_OF_LIBRARIES = ("CUBLAS_STATUS", "CUSPARSE_STATUS", "CUSOLVER_STATUS")
"""A library that refuses an operation begins its message like a device that is lost."""


def is_out_of_memory(error: BaseException) -> bool:
    """Not only torch's allocator runs out: so do the driver, Triton and cuBLAS, each with a class of its own."""
    text = str(error)
    said = "out of memory" in text.lower() or "CUBLAS_STATUS_ALLOC_FAILED" in text
    return isinstance(error, torch.OutOfMemoryError) or (isinstance(error, RuntimeError) and said)


def is_lost(error: BaseException) -> bool:
    """The device does not answer any more: it fell off the bus, or a kernel did what none may, after which nothing runs in this process."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return False
    text = str(error)
    return isinstance(error, torch.AcceleratorError) or (
        text.startswith(_LOST) and not any(library in text for library in _OF_LIBRARIES)
    )


def lost(device: torch.device, cause: str) -> str:
    """What to tell whoever worked with it."""
    return f"{device} stopped answering: {cause}. nvidia-smi and the kernel's log may tell why; when it is back, go on with --resume"
