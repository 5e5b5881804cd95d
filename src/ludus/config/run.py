"""Every knob, one typed tree. Promise: a key is consumed or rejected, with the near name; nothing is silently ignored.

A run is a TOML file plus dotted overrides (`trainer.lr=1e-4`). The docstring under a field is its help text. The knobs of learning
stand in `learning.py`, those of playing in `playing.py`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import tomli_w
from pydantic import Field, ValidationError, model_validator

from ludus.config.learning import (
    BY_VALUES,
    AlgorithmConfig,
    CriticConfig,
    CurriculumConfig,
    HorizonConfig,
    MonitorConfig,
    Section,
    SpeakersConfig,
    TeacherConfig,
)
from ludus.config.playing import EngineConfig, RolloutConfig
from ludus.errors import ConfigError, nearest


class ModelConfig(Section):
    name: str = "tiny"
    """A folder, a hub name, a pulled model (`ludus models list`), or `tiny`, which is made from scratch."""
    device: str = "auto"
    """auto (a GPU where there is one), cpu, cuda or cuda:N; `devices` gives engine and trainer one each."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 on a GPU that has it (compute capability 8 and up), float32 elsewhere."""
    chat_template: str = ""
    """A Jinja file that replaces the model's own chat template."""
    tool_format: Literal["auto", "hermes", "llama3", "smollm2", "json"] = "auto"
    """How the model writes tool calls; auto reads it off the chat template."""


HERE, WORKERS = "here", "workers"
SandboxKind = Literal["none", "process", "namespace", "container"]
"""What a session's untrusted code runs in, from the least contained to the most."""


class EnvironmentConfig(Section):
    source: str = ""
    """Where the class is, as module:Class or file.py (or file.py:Class); empty: the section's name is a registered environment."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the groups, relative to the other environments."""
    max_turns: int | None = Field(default=None, gt=0)
    """Overrides rollout.max_turns for this environment."""
    options: dict[str, Any] = {}
    """Handed to the environment's constructor, which rejects what it does not know. At a controller they must be what its workers have."""
    at: str = HERE
    """Where its sessions run: here (this process, or that of pipeline.session_processes), workers (processes that the run starts and
    stops itself), or a controller's URL."""
    sandbox: SandboxKind = "none"
    """What its untrusted code runs in at least. Where the environment itself declares more, that holds."""
    image: str = ""
    """Of its container, in place of the environment's own."""

    @model_validator(mode="after")
    def _somewhere(self) -> EnvironmentConfig:
        remote = self.at.startswith(("http://", "https://"))
        if self.at not in (HERE, WORKERS) and not remote:
            raise ValueError(
                f"at is {self.at!r}; expected '{HERE}', '{WORKERS}' or a controller's URL such as http://127.0.0.1:7100."
                f"{nearest(self.at, (HERE, WORKERS))}"
            )
        if remote and "@" in self.at:
            raise ValueError("at holds a password, which would be stored with the run; see controller.token_file")
        if remote and self.image:
            raise ValueError(f"image is {self.image!r} with at {self.at!r}, whose workers have their own; leave it out")
        if remote and self.source:
            raise ValueError(
                f"source is {self.source!r} with at {self.at!r}, whose workers have their own; leave it out"
            )
        return self


class WorkersConfig(Section):
    num: int = Field(default=1, gt=0)
    """Processes that the run starts for its environments with at = "workers", and stops when it ends."""
    slots: int = Field(default=256, gt=0)
    """Sessions at once in each of them; more wait for a free slot."""


class ControllerConfig(Section):
    token_file: str = ""
    """A file that holds the token for the controllers in environments.NAME.at; empty: LUDUS_TOKEN, where it is set."""
    wait_s: float = Field(default=300.0, gt=0)
    """How long a session may wait for a free slot, there or on the run's own workers, before it counts as failed."""


class PipelineConfig(Section):
    steps: int = Field(default=100, gt=0)
    """Optimiser steps of the run."""
    groups_per_step: int = Field(default=8, gt=0)
    """Groups in the batch of one optimiser step."""
    max_staleness: int = Field(default=1, ge=0)
    """The bound: no trained group is older, in optimiser steps. 0 is synchronous training."""
    probe_tolerance: float = Field(default=0.0, ge=0)
    """Mean logprob gap between engine and trainer on the probe prompt after a load; 0 picks 1e-3 in float32, 0.25 in bfloat16."""
    session_processes: int = Field(default=-1, ge=-1)
    """Processes that play the training's sessions, with the environments that are `here`; 0: the run's own, where they share one
    interpreter with engine and trainer. -1 picks 0 on a CPU and 1 on a GPU, which hundreds of sessions would keep waiting."""

    def processes(self, *, on_gpu: bool) -> int:
        return self.session_processes if self.session_processes >= 0 else int(on_gpu)

    @property
    def slots(self) -> int:
        return (self.max_staleness + 1) * self.groups_per_step


class TrainerConfig(Section):
    lr: float = Field(default=1e-4, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    decay: Literal["none", "cosine"] = "none"
    """cosine: the learning rate falls to 0 over pipeline.steps."""
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm."""
    microbatch_tokens: int = Field(default=0, ge=0)
    """Tokens packed into one forward and backward pass; gradients accumulate over the microbatches of a step. 0 picks 4096 on a CPU, and
    on a GPU what its free memory holds, measured in the first step. Where memory runs out, a step goes on with half of it."""
    checkpoint_activations: bool = False
    """Keep only what enters each layer and compute the rest again in the backward pass: a third more work for a fraction of the memory."""
    compile: bool | None = None
    """Compile the decoder's layers (torch.compile), a minute at the start. Unset: on a GPU, where we have no kernels for them."""
    threads: int = Field(default=1, ge=0)
    """CPU threads of the trainer; 0 leaves torch's default."""


class LoraConfig(Section):
    rank: int = Field(default=0, ge=0)
    """Of the adapters that are trained in place of the weights (needs ludus[lora]); 0: no adapters, all weights are trained. Adapters want
    about ten times the learning rate."""
    alpha: int = Field(default=0, ge=0)
    """What an adapter adds is scaled by alpha / rank; 0 picks twice the rank."""
    targets: tuple[str, ...] = ()
    """Linear layers that get an adapter, such as q_proj; empty: all of the decoder's."""

    @model_validator(mode="after")
    def _there_are_adapters(self) -> LoraConfig:
        if not self.rank and (self.alpha or self.targets):
            raise ValueError(
                f"lora.rank is 0, so there are no adapters, but lora.alpha is {self.alpha} and lora.targets {list(self.targets)}; set "
                "a rank, such as 16, or leave them out"
            )
        return self


class SftConfig(Section):
    trajectories: str = ""
    """A run folder (of `ludus collect`, for instance) or one of its trajectories files to clone; empty: the environments' solvers play."""
    mistakes: float = Field(default=0.0, ge=0, le=1)
    """Chance that the solver plays a random valid action instead of its own."""
    min_reward: float | None = None
    """Clone only trajectories with at least this reward; unset: all of them, the lost ones too."""
    num_trajectories: int = Field(default=1000, gt=0)
    """Played by the solvers, divided between the environments by weight."""
    steps: int = Field(default=200, gt=0)
    """Optimiser steps of the cloning."""
    batch_tokens: int = Field(default=4096, gt=0)
    """Tokens of one step, prompts included."""
    lr: float = Field(default=2e-3, gt=0)
    warmup_steps: int = Field(default=10, ge=0)


class EvolveConfig(Section):
    rounds: int = Field(default=4, gt=0)
    """`ludus evolve`: how often it plays, keeps its successes and clones them, as [sft] says, into the model it started with."""
    num_trajectories: int = Field(default=512, gt=0)
    """Played in each round, divided between the environments by weight."""
    min_reward: float = 1.0
    """Kept are trajectories with at least this reward."""


class EvaluationConfig(Section):
    every: int = Field(default=0, ge=0)
    """Evaluate on held-out tasks every so many steps, while training goes on; 0: only when asked."""
    split: str = "test"
    """Which tasks are held out."""
    num_tasks: int = Field(default=64, gt=0)
    """Per environment."""
    attempts: int = Field(default=1, gt=0)
    """Per task."""
    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy."""


class StoreConfig(Section):
    folder: str = "runs"
    """Where run folders are made."""
    checkpoint_every: int = Field(default=50, ge=0)
    """In optimiser steps; 0: only at the end and on Ctrl-C."""
    keep_checkpoints: int = Field(default=2, gt=0)
    """The newest so many."""
    trajectories: bool = True
    """Store every trajectory."""
    tensorboard: bool = True


class RunConfig(Section):
    name: str = Field(default="run", pattern=r"^[\w+-][\w.+-]*$")
    """The run's folder is STORE.FOLDER/NAME. Letters, digits, and . _ + - inside."""
    seed: int = 0
    """Decides the draw of tasks, the noise of every attempt, and the weights of `tiny`."""
    devices: tuple[str, ...] = Field(default=(), max_length=2)
    """Where the engine computes and where the trainer does, e.g. ["cuda:0", "cuda:1"]. One name: both; none: both on model.device."""
    model: ModelConfig = ModelConfig()
    environments: dict[str, EnvironmentConfig] = {}
    workers: WorkersConfig = WorkersConfig()
    controller: ControllerConfig = ControllerConfig()
    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = EngineConfig()
    pipeline: PipelineConfig = PipelineConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    horizons: dict[str, HorizonConfig] = {}
    """By environment: how its limit on turns grows. Without one it is max_turns throughout."""
    speakers: SpeakersConfig = SpeakersConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    critic: CriticConfig = CriticConfig()
    teacher: TeacherConfig = TeacherConfig()
    trainer: TrainerConfig = TrainerConfig()
    lora: LoraConfig = LoraConfig()
    monitor: MonitorConfig = MonitorConfig()
    sft: SftConfig = SftConfig()
    evolve: EvolveConfig = EvolveConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    store: StoreConfig = StoreConfig()

    @property
    def folder(self) -> Path:
        return Path(self.store.folder) / self.name

    @model_validator(mode="after")
    def _sound(self) -> RunConfig:
        if self.rollout.min_group_size > self.rollout.group_size:
            raise ValueError(
                f"rollout.min_group_size is {self.rollout.min_group_size}, above rollout.group_size {self.rollout.group_size}; "
                "no group could ever be complete"
            )
        if unknown := self.horizons.keys() - self.environments.keys():
            raise ValueError(
                f"horizons.{min(unknown)} names no environment of this run; known: {', '.join(self.environments)}"
            )
        return self

    @model_validator(mode="after")
    def _devices_are_named_once(self) -> RunConfig:
        if self.devices and self.model.device != "auto":
            raise ValueError(
                f"devices is {list(self.devices)} and model.device {self.model.device!r}; say it once, and leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _server_renders_for_itself(self) -> RunConfig:
        if self.engine.kind == "chat" and self.model != ModelConfig():
            raise ValueError(
                f"model is set (name {self.model.name!r}) with engine.kind 'chat', which has its own tokenizer and template; leave the "
                "section out, or use kind 'server' where the endpoint returns token ids"
            )
        return self

    @model_validator(mode="after")
    def _learns(self) -> RunConfig:
        """Combinations that are known not to."""
        algorithm, bound = self.algorithm, self.pipeline.max_staleness
        if self.rollout.group_size < 2 and algorithm.advantage in ("group", "leave_one_out", "gigpo"):
            raise ValueError(
                f"rollout.group_size is 1 with algorithm.advantage {algorithm.advantage!r}, which compares attempts with each other; "
                "use at least 2, or advantage 'reward' or 'return_to_go'"
            )
        corrected = algorithm.centre == "behaviour" or algorithm.importance_cap or algorithm.foreign == "mask"
        if self.speakers.others and not corrected:
            raise ValueError(
                "speakers beside the current policy would be trained without a correction for who spoke: set algorithm.importance_cap, "
                "centre 'behaviour', or foreign 'mask'"
            )
        if algorithm.foreign == "mask" and not self.speakers.others:
            raise ValueError("algorithm.foreign is 'mask', but only the current policy speaks; set speakers.stale too")
        if algorithm.foreign == "train" and (names := self.speakers.in_words):
            raise ValueError(
                f"algorithm.foreign is 'train', but speakers.outside.{names[0]} gives words without logprobs, so that it cannot be the "
                "behaviour policy of a ratio; set algorithm.foreign = 'mask', or its kind = 'server' where it returns ids and logprobs"
            )
        servers = [name for name, outside in self.speakers.outside.items() if outside.kind == "server"]
        if servers and self.rollout.temperature != 1.0:
            raise ValueError(
                f"speakers.outside.{servers[0]} has kind 'server', which reports the logprobs of temperature 1, but rollout.temperature is "
                f"{self.rollout.temperature:g}; set it to 1, or kind = 'chat' with algorithm.foreign = 'mask'"
            )
        bound = bound or bool(self.speakers.others and algorithm.foreign == "train")
        if algorithm.loss == "reinforce" and algorithm.centre == "behaviour" and bound:
            raise ValueError(
                "algorithm.loss 'reinforce' around 'behaviour' is unclipped importance sampling, which collapses on stale tokens; above "
                "pipeline.max_staleness 0 use loss 'clip' or 'cispo', or centre 'old' with an importance_cap"
            )
        return self

    @model_validator(mode="after")
    def _critic_is_there_and_used(self) -> RunConfig:
        advantage, kind = self.algorithm.advantage, self.critic.kind
        fitting = ("archer",) if advantage == "archer" else ("head", "model") if advantage in BY_VALUES else ("none",)
        if kind in fitting:
            return self
        if kind == "none":
            raise ValueError(
                f"algorithm.advantage is {advantage!r}, which needs a critic, and there is none; set critic.kind to {' or '.join(fitting)}"
            )
        if fitting == ("none",):
            raise ValueError(f"critic.kind is {kind!r}, but algorithm.advantage {advantage!r} asks none; leave it out")
        raise ValueError(
            f"critic.kind is {kind!r}, but algorithm.advantage {advantage!r} asks another: {' or '.join(fitting)}"
        )

    @model_validator(mode="after")
    def _levels_can_be_scored(self) -> RunConfig:
        if self.curriculum.score == "positive_value_loss" and self.critic.kind not in ("head", "model"):
            raise ValueError(
                f"curriculum.score is 'positive_value_loss', which is a critic's, and critic.kind is {self.critic.kind!r}; set it to head "
                "or model with an advantage that asks one, or use score 'advantage'"
            )
        return self

    @model_validator(mode="after")
    def _teacher_is_there_and_used(self) -> RunConfig:
        if (self.algorithm.advantage == "teacher") != bool(self.teacher.model):
            raise ValueError(
                f"teacher.model is {self.teacher.model!r} with algorithm.advantage {self.algorithm.advantage!r}; a teacher goes with "
                "advantage 'teacher' and only with it"
            )
        shaping = [key for key in ("unfinished_reward", "overlong") if getattr(self.algorithm, key) is not None]
        if self.teacher.model and shaping:
            raise ValueError(
                f"algorithm.{shaping[0]} shapes the reward, but with advantage 'teacher' the teacher judges alone and rewards are not "
                "trained on; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _places_are_used(self) -> RunConfig:
        places = {section.at for section in self.environments.values()}
        if self.workers != WorkersConfig() and WORKERS not in places:
            raise ValueError(
                f"workers is set, but no environment runs there; give one at = '{WORKERS}', or leave it out"
            )
        if self.controller != ControllerConfig() and places <= {HERE}:
            raise ValueError(
                "controller is set, but all environments run in this process; give one another `at`, or leave it out"
            )
        if self.controller.token_file and places <= {HERE, WORKERS}:
            raise ValueError(
                f"controller.token_file is {self.controller.token_file!r}, but no environment is at a controller's URL, and the run's own "
                "workers have a token of their own; leave it out"
            )
        return self

    def only(self, names: Collection[str]) -> RunConfig:
        """The run with these environments alone, and without what counted for the others: the resolved run must read back."""
        kept = {name: section for name, section in self.environments.items() if name in names}
        places = {section.at for section in kept.values()}
        workers = self.workers if WORKERS in places else WorkersConfig()
        token_file = self.controller.token_file if places - {HERE, WORKERS} else ""
        waits = self.controller.model_copy(update={"token_file": token_file})
        controller = waits if places - {HERE} else ControllerConfig()
        update = {"environments": kept, "horizons": {}, "workers": workers, "controller": controller}
        return self.model_copy(update=update)


def load_config(
    path: str | Path | None = None,
    overrides: Iterable[str] = (),
    *,
    without: Iterable[str] = (),
    environments: Mapping[str, str] | None = None,
) -> RunConfig:
    """The resolved run: the TOML file (if any) less its sections `without`, with `environments` and their sources beside those it has
    (what it says about one of them stays), then overrides such as "trainer.lr=1e-4"."""
    data: dict[str, Any] = {}
    if path is not None:
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f"run file {str(path)!r} does not exist; expected a TOML file. Those that are shipped are in the checkout's configs/."
            ) from None
        except OSError as error:
            raise ConfigError(
                f"run file {str(path)!r} cannot be read: {error.strerror}; expected a TOML file"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"run file {str(path)!r} is not valid TOML: {error}") from None
    for section in without:
        data.pop(section, None)
    for name, source in (environments or {}).items():
        _section(data, ["environments", name]).update({"source": source} if source else {})
    for override in overrides:
        _apply(data, override)
    return parse_config(data)


def parse_config(data: Mapping[str, Any]) -> RunConfig:
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(detail) for detail in error.errors())) from None


def dump_config(config: RunConfig) -> str:
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"override {override!r} is not of the form key=value, e.g. trainer.lr=1e-4")
    *sections, name = key.strip().split(".")
    _section(data, sections)[name] = _value(text, annotation=_annotation_at([*sections, name]))


def _section(data: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """The section at this path, made where there is none."""
    for name in path:
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{'.'.join(path)}: {name!r} is a value, not a section")
    return data


def _value(text: str, *, annotation: Any) -> Any:
    """A TOML value where it is one; else, and wherever text is expected, the characters themselves: name=2024, model.name=tiny."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return text if annotation is str and not isinstance(value, str) else value


def _explain(detail: Any) -> str:
    path = [str(part) for part in detail["loc"]]
    key = ".".join(path)
    if detail["type"] == "extra_forbidden":
        known = _fields_at(path[:-1])
        near = nearest(path[-1], known)
        return f"unknown key {key!r}.{near} Known here: {', '.join(known)}."
    if detail["type"] == "model_type":
        return f"{key}: expected a section with keys {', '.join(_fields_at(path))} (got {detail['input']!r})"
    if detail["type"] == "string_pattern_mismatch":
        return f"{key} is {detail['input']!r}; expected another form. {_description_at(path)}"
    got = "" if detail["type"] == "value_error" else f" (got {detail['input']!r})"
    near = nearest(str(detail["input"]), _choices_at(path)) if detail["type"] == "literal_error" else ""
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"{key}: {message}{got}{near}" if key else message


def _annotation_at(path: Sequence[str]) -> Any:
    """The type at a dotted path of the tree; Any inside an environment's own options, None where the tree has nothing."""
    annotation: Any = RunConfig
    for part in path:
        if isinstance(annotation, type) and issubclass(annotation, Section):
            field = annotation.model_fields.get(part)
            annotation = field.annotation if field else None
        else:  # a name inside a mapping: environments.NAME
            annotation = get_args(annotation)[1] if get_origin(annotation) is dict else None
    return annotation


def _fields_at(path: Sequence[str]) -> list[str]:
    section = _annotation_at(path)
    return sorted(section.model_fields) if isinstance(section, type) and issubclass(section, Section) else []


def _description_at(path: Sequence[str]) -> str:
    section = _annotation_at(path[:-1])
    return section.model_fields[path[-1]].description or ""


def _choices_at(path: Sequence[str]) -> list[str]:
    return [str(choice) for choice in get_args(_annotation_at(path))]
