import pytest
import torch

from ludus.models.faults import is_lost, is_out_of_memory


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "memory"),
        (torch.AcceleratorError("CUDA error: out of memory"), "memory"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "memory"),
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), "lost"),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), "lost"),
        (RuntimeError("CUDA error: device-side assert triggered"), "lost"),
        (RuntimeError("Triton Error [CUDA]: device kernel image is invalid"), "lost"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx`"), "neither"),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), "neither"),
        (ValueError("out of memory"), "neither"),
    ],
)
def test_memory_that_ran_out_is_told_from_a_device_that_is_gone(error, meaning):
    assert (is_out_of_memory(error), is_lost(error)) == (meaning == "memory", meaning == "lost")
