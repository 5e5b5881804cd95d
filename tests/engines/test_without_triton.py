"""A machine without a GPU needs no Triton, and never asks for it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys

class NoTriton:
    def find_spec(self, name, *_):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(f"no module named {name!r}, as ordered", name=name)

sys.meta_path.insert(0, NoTriton())

import asyncio
import ludus.launch.train, ludus.launch.clone, ludus.launch.serving.endpoint
from tests.engines.examples import embedded, small_llama, tokens

async def main():
    async with embedded(small_llama()) as engine:
        return await engine.generate([1, 2, 3], sampling=tokens(4), session_id="a")

assert len(asyncio.run(main()).ids) == 4
from tests.trainer.examples import make_batch, make_trainer

assert make_trainer().step(make_batch())["loss"]
triton = [name for name in sys.modules if name.split(".")[0] == "triton" or "kernels" in name and name.startswith("ludus")]
print("imported:", triton)
"""


def test_generating_and_training_on_a_cpu_import_no_triton_and_none_of_our_kernels():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("imported: []")
