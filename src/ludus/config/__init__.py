"""Every key of a run file, as one typed tree. The docstring under a field is its help text."""

from ludus.config.algorithm import AlgorithmConfig, CriticConfig
from ludus.config.engine import EngineConfig
from ludus.config.environments import HERE, WORKERS, ControllerConfig, EnvironmentConfig, SandboxKind, WorkersConfig
from ludus.config.files import dump_config, load_config, parse_config
from ludus.config.model import LoraConfig, ModelConfig, TeacherConfig
from ludus.config.pipeline import (
    CurriculumConfig,
    EvaluationConfig,
    HorizonConfig,
    MonitorConfig,
    PipelineConfig,
    StoreConfig,
)
from ludus.config.rollout import CrossPolicyConfig, OutsideConfig, RolloutConfig
from ludus.config.run import RunConfig
from ludus.config.section import Section
from ludus.config.trainer import EvolveConfig, SftConfig, TrainerConfig

__all__ = [
    "HERE", "WORKERS", "AlgorithmConfig", "ControllerConfig", "CriticConfig", "CrossPolicyConfig",
    "CurriculumConfig", "EngineConfig", "EnvironmentConfig", "EvaluationConfig", "EvolveConfig", "HorizonConfig",
    "LoraConfig", "ModelConfig", "MonitorConfig", "OutsideConfig", "PipelineConfig", "RolloutConfig", "RunConfig",
    "SandboxKind", "Section", "SftConfig", "StoreConfig", "TeacherConfig", "TrainerConfig", "WorkersConfig",
    "dump_config", "load_config", "parse_config",
]  # fmt: skip
