"""What a GPU error means. Promise: out of memory and a lost device are told apart."""

from __future__ import annotations

import torch

_LOST = ("CUDA error: ", "Triton Error [CUDA]: ")
_OF_LIBRARIES = ("CUBLAS_STATUS", "CUSPARSE_STATUS", "CUSOLVER_STATUS")
"""A library that refuses an operation begins its message as a lost device does."""


def is_out_of_memory(error: BaseException) -> bool:
    """Also of the driver, Triton and cuBLAS, which raise classes of their own."""
    text = str(error)
    matches = "out of memory" in text.lower() or "CUBLAS_STATUS_ALLOC_FAILED" in text
    return isinstance(error, torch.OutOfMemoryError) or (isinstance(error, RuntimeError) and matches)


def is_lost(error: BaseException) -> bool:
    """It fell off the bus, or a kernel faulted, after which nothing runs in this process."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return False
    text = str(error)
    return isinstance(error, torch.AcceleratorError) or (
        text.startswith(_LOST) and not any(library in text for library in _OF_LIBRARIES)
    )


def lost(device: torch.device, cause: str) -> str:
    """The message for a lost device."""
    return (
        f"{device} stopped answering: {cause}. See nvidia-smi and the kernel log for the reason; when the device is "
        "back, continue with --resume"
    )
