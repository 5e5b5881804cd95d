"""Which device does what. GPUs are pretended: nothing here computes on one."""

from __future__ import annotations

import pytest
import torch

from ludus.config import parse_config
from ludus.errors import ConfigError, TrainerFailed
from ludus.launch.devices import chosen, devices_of, engine_config, naming_loss


@pytest.fixture
def gpus(monkeypatch):
    def pretend(count: int, *, capability: tuple[int, int] = (9, 0)) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Pretended")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    return pretend


def config_of(**sections):
    return parse_config({"environments": {"guess": {}}, **sections})


def names(config) -> tuple[str, str]:
    devices = devices_of(config)
    return str(devices.engine), str(devices.trainer)


@pytest.mark.parametrize(
    ("count", "sections", "expected"),
    [
        (0, {}, ("cpu", "cpu")),
        (1, {}, ("cuda:0", "cuda:0")),
        (2, {}, ("cuda:0", "cuda:0")),
        (2, {"devices": ["cuda:0", "cuda:1"]}, ("cuda:0", "cuda:1")),
        (2, {"devices": ["cuda:1"]}, ("cuda:1", "cuda:1")),
        (1, {"devices": ["cuda", "cpu"]}, ("cuda:0", "cpu")),
        (2, {"model": {"device": "cuda:1"}}, ("cuda:1", "cuda:1")),
        (2, {"model": {"device": "cpu"}}, ("cpu", "cpu")),
    ],
)
def test_engine_and_trainer_share_a_device_unless_each_has_its_own(gpus, count, sections, expected):
    gpus(count)
    assert names(config_of(**sections)) == expected


def test_a_device_that_is_not_here_is_refused_with_those_that_are(gpus):
    gpus(2)
    with pytest.raises(ConfigError, match=r"devices\[1\] is 'cuda:2', which is not here.*cuda:1 \(NVIDIA Pretended\)"):
        devices_of(config_of(devices=["cuda:0", "cuda:2"]))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"devices": ["cuda:0"], "model": {"device": "cuda:1"}}, "leave one of them out"),
        ({"devices": ["cuda:0", "cuda:1", "cuda:2"]}, "devices.*at most 2"),
        ({"devices": "cuda:0"}, "devices"),
    ],
)
def test_devices_that_cannot_be_meant_are_refused(sections, message):
    with pytest.raises(ConfigError, match=message):
        config_of(**sections)


def test_what_the_run_file_leaves_open_is_chosen_by_the_device_and_told(gpus):
    gpus(0)
    assert chosen(config_of()) == [
        "engine on cpu, trainer on cpu, float32",
        "engine.max_running 64, engine.max_cached 128, engine.prefill_tokens 1024",
    ]
    gpus(1)
    assert chosen(config_of(engine={"max_running": 32})) == [
        "engine on cuda:0 (NVIDIA Pretended), trainer on cuda:0 (NVIDIA Pretended), bfloat16",
        "engine.max_running 32, engine.max_cached 512, engine.prefill_tokens 16384",
        "engine.memory 0.4 of the device's memory for keys and values",
        "pipeline.session_processes 1: training's sessions are played outside of the run's own process",
    ]
    assert chosen(config_of(pipeline={"session_processes": 0}))[-1].startswith("engine.memory"), "whoever says 0 has it"
    gpus(0)
    assert chosen(config_of(pipeline={"session_processes": 2}))[-1].startswith("pipeline.session_processes 2")


def test_a_gpu_without_bfloat16_computes_in_float32_and_says_so_and_refuses_what_it_cannot_do(gpus):
    gpus(1, capability=(7, 5))
    config = config_of()
    lines = chosen(config)
    assert lines[0].endswith("float32")
    assert "cuda:0 has no bfloat16: float32 takes twice the memory, and is slower" in lines
    with pytest.raises(ConfigError, match=r"'bfloat16', but cuda:0 \(NVIDIA Pretended\).*capability 8.*'float32'"):
        chosen(config_of(model={"dtype": "bfloat16"}))


def test_where_nothing_is_trained_nothing_is_said_of_it_and_the_engine_has_the_device(gpus):
    gpus(1)
    first, *others = chosen(config_of(), trains=False)
    assert first == "engine on cuda:0 (NVIDIA Pretended), bfloat16"
    assert others[-1] == "engine.memory 0.8 of the device's memory for keys and values"


def test_an_engine_that_has_its_device_to_itself_gets_more_of_its_memory(gpus):
    gpus(2)
    for sections, share in (({}, 0.4), ({"devices": ["cuda:0", "cuda:1"]}, 0.8), ({"engine": {"memory": 12.0}}, 12.0)):
        config = config_of(**sections)
        assert engine_config(config, devices=devices_of(config)).sized(on_gpu=True).memory == share


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: unspecified launch failure, as ordered"),
        RuntimeError("Triton Error [CUDA]: device lost, as ordered"),
    ],
)
def test_a_gpu_that_disappears_while_it_trains_is_a_named_failure(error):
    with (
        pytest.raises(TrainerFailed, match=r"cuda:1 stopped answering: .*as ordered.*nvidia-smi.*--resume"),
        naming_loss(torch.device("cuda:1")),
    ):
        raise error


def test_what_else_goes_wrong_keeps_its_name():
    with pytest.raises(RuntimeError, match="shapes do not match"), naming_loss(torch.device("cuda:1")):
        raise RuntimeError("shapes do not match")
