"""The whole run file as one typed tree, and the checks across its sections."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path

from pydantic import Field, SerializeAsAny

from ludus.config.algorithm import AlgorithmConfig, CriticConfig
from ludus.config.engine import EngineConfig
from ludus.config.environments import HERE, WORKERS, ControllerConfig, EnvironmentConfig, WorkersConfig
from ludus.config.model import LoraConfig, ModelConfig, TeacherConfig
from ludus.config.pipeline import (
    CurriculumConfig,
    EvaluationConfig,
    HorizonConfig,
    MonitorConfig,
    PipelineConfig,
    StoreConfig,
)
from ludus.config.rollout import CrossPolicyConfig, RolloutConfig
from ludus.config.section import Section
from ludus.config.trainer import EvolveConfig, SftConfig, TrainerConfig


class RunConfig(Section):
    name: str = Field(default="run", pattern=r"^[\w+-][\w.+-]*$")
    """Name of the run; its folder is STORE.FOLDER/NAME. Letters, digits, and . _ + - inside."""
    seed: int = 0
    """Seed of the order of tasks, of the noise of every attempt, and of the weights of `tiny`."""
    devices: tuple[str, ...] = Field(default=(), max_length=2)
    """Devices of engine and trainer: ["cuda:0", "cuda:1"]. One: both. Empty: model.device."""
    model: ModelConfig = ModelConfig()
    environments: dict[str, EnvironmentConfig] = {}
    workers: WorkersConfig = WorkersConfig()
    controller: ControllerConfig = ControllerConfig()
    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = EngineConfig()
    pipeline: PipelineConfig = PipelineConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    horizons: dict[str, HorizonConfig] = {}
    """By environment: how its limit on turns grows. Without one the limit is max_turns."""
    cross_policy: CrossPolicyConfig = CrossPolicyConfig()
    algorithm: SerializeAsAny[AlgorithmConfig] = Field(default_factory=AlgorithmConfig)
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

    def problems(self) -> Iterator[str]:
        policies, critic, teacher = self._policy_problems(), self._critic_problems(), self._teacher_problems()
        return chain(self._basic_problems(), policies, critic, teacher, self._place_problems())

    def _basic_problems(self) -> Iterator[str]:
        rollout, advantage = self.rollout, self.algorithm.advantage
        if rollout.min_group_size > rollout.group_size:
            yield (
                f"rollout.min_group_size is {rollout.min_group_size}, above rollout.group_size {rollout.group_size}; "
                "no group could ever be complete"
            )
        if rollout.group_size < 2 and self.algorithm.advantage_piece.compares:
            yield (
                f"rollout.group_size is 1 with algorithm.advantage {advantage!r}, which compares attempts with each "
                "other; use at least 2, or advantage 'reward' or 'return_to_go'"
            )
        if unknown := self.horizons.keys() - self.environments.keys():
            yield f"horizons.{min(unknown)} names no environment of this run; known: {', '.join(self.environments)}"
        if self.devices and self.model.device != "auto":
            yield f"devices is {list(self.devices)} and model.device {self.model.device!r}; leave one of them out"
        if self.engine.kind == "chat" and self.model != ModelConfig():
            yield (
                f"model is set (name {self.model.name!r}) with engine.kind 'chat', which has its own tokenizer and "
                "template; leave the section out, or use kind 'server' if the endpoint returns token ids"
            )

    def _policy_problems(self) -> Iterator[str]:
        algorithm, others = self.algorithm, self.cross_policy.others
        behaviour, masked = algorithm.ratio_base == "behaviour", algorithm.off_policy == "mask"
        if others and not (behaviour or masked or algorithm.get("importance_cap")):
            yield (
                "cross_policy: other policies' tokens would be trained without a correction for the policy that "
                "sampled them; set algorithm.importance_cap, ratio_base 'behaviour', or off_policy 'mask'"
            )
        if masked and not others:
            yield "algorithm.off_policy is 'mask', but only the current policy samples; set cross_policy.stale too"
        chats, servers = (
            [name for name, outside in self.cross_policy.outside.items() if outside.kind == kind]
            for kind in ("chat", "server")
        )
        if chats and not masked:
            yield (
                f"algorithm.off_policy is 'train', but cross_policy.outside.{chats[0]} returns text without logprobs, "
                "so it cannot be the behaviour policy of a ratio; set algorithm.off_policy = 'mask', or its kind = "
                "'server' if it returns token ids and logprobs"
            )
        if servers and self.rollout.temperature != 1.0:
            yield (
                f"cross_policy.outside.{servers[0]} has kind 'server', which reports the logprobs of temperature 1, "
                f"but rollout.temperature is {self.rollout.temperature:g}; set it to 1, or kind = 'chat' with "
                "algorithm.off_policy = 'mask'"
            )
        off_policy = self.pipeline.max_staleness > 0 or (bool(others) and not masked)
        if algorithm.loss == "reinforce" and behaviour and off_policy:
            yield (
                "algorithm.loss 'reinforce' with ratio_base 'behaviour' is unclipped importance sampling, which "
                "collapses on stale tokens; with pipeline.max_staleness above 0 use loss 'clip' or 'cispo', or "
                "ratio_base 'old' with an importance_cap"
            )

    def _critic_problems(self) -> Iterator[str]:
        advantage, kind = self.algorithm.advantage, self.critic.kind
        fitting = self.algorithm.advantage_piece.critics
        if kind != "none" and not fitting:
            yield f"critic.kind is {kind!r}, but algorithm.advantage {advantage!r} asks none; leave it out"
        if kind == "none" and fitting:
            yield (
                f"algorithm.advantage is {advantage!r}, which needs a critic, and there is none; set critic.kind to "
                f"{' or '.join(fitting)}"
            )
        if fitting and kind not in fitting:
            yield f"critic.kind is {kind!r}, but algorithm.advantage {advantage!r} asks another: {' or '.join(fitting)}"
        if self.curriculum.score == "positive_value_loss" and kind not in ("head", "model"):
            yield (
                f"curriculum.score is 'positive_value_loss', which is a critic's, and critic.kind is {kind!r}; set it "
                "to head or model with an advantage that asks one, or use score 'advantage'"
            )

    def _teacher_problems(self) -> Iterator[str]:
        algorithm = self.algorithm
        if (algorithm.advantage == "teacher") != bool(self.teacher.model):
            yield (
                f"teacher.model is {self.teacher.model!r} with algorithm.advantage {algorithm.advantage!r}; a teacher "
                "goes with advantage 'teacher' and only with it"
            )
        for key in ("unfinished_reward", "overlong"):
            if self.teacher.model and algorithm.get(key) is not None:
                yield (
                    f"algorithm.{key} shapes the reward, but with advantage 'teacher' the teacher judges alone and "
                    "rewards are not trained on; leave it out"
                )

    def _place_problems(self) -> Iterator[str]:
        places = {section.at for section in self.environments.values()}
        if self.workers != WorkersConfig() and WORKERS not in places:
            yield f"workers is set, but no environment runs there; give one at = '{WORKERS}', or leave it out"
        if self.controller != ControllerConfig() and places <= {HERE}:
            yield "controller is set, but all environments run in this process; give one another `at`, or leave it out"
        if self.controller.token_file and places <= {HERE, WORKERS}:
            yield (
                f"controller.token_file is {self.controller.token_file!r}, but no environment is at a controller's URL, "
                "and the run's own workers have a token of their own; leave it out"
            )

    def only(self, names: Collection[str]) -> RunConfig:
        """The run with these environments alone, without sections that only the others used."""
        kept = {name: section for name, section in self.environments.items() if name in names}
        places = {section.at for section in kept.values()}
        workers = self.workers if WORKERS in places else WorkersConfig()
        token_file = self.controller.token_file if places - {HERE, WORKERS} else ""
        waits = self.controller.model_copy(update={"token_file": token_file})
        controller = waits if places - {HERE} else ControllerConfig()
        update = {"environments": kept, "horizons": {}, "workers": workers, "controller": controller}
        return self.model_copy(update=update)
