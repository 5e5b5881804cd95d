import subprocess
import sys
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.config import RunConfig, dump_config, load_config, parse_config
from ludus.errors import ConfigError


def test_nothing_given_is_a_valid_run():
    assert load_config() == RunConfig()


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("traner.lr=1", "trainer"),
        ("trainer.leraning_rate=1", "compile, decay, lr"),
        ("rollout.max_turn=3", "max_turns"),
        ("environments.guess.weigth=2", "weight"),
        ("environments.options.weigth=2", "weight"),
        ("environments.guess.max_turn=2", "max_turns"),
    ],
)
def test_an_unknown_key_is_rejected_with_the_near_name_at_every_level(override, near):
    with pytest.raises(ConfigError, match=near):
        load_config(None, [override])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["environments.guess.at=workrs"], r"'here', 'workers' or a controller's URL.*Did you mean 'workers'"),
        (["environments.guess.at=127.0.0.1:7100"], r"at is '127.0.0.1:7100'; expected .* such as http://"),
        (["environments.guess.at=http://me:secret@a:7100"], r"^environments.guess: at holds a password(?!.*secret)"),
        (["environments.guess.at=http://a:7100", "environments.guess.source=a.py"], r"source is 'a.py'.*leave it out"),
        (["environments.guess.weight=1", "workers.num=3"], r"workers is set, but no environment runs there"),
        (
            ["environments.guess.weight=1", "controller.wait_s=9"],
            r"controller is set, but all environments run in this",
        ),
        (["environments.guess.at=workers", "controller.token_file=t"], r"token_file is 't'.*have a token of their own"),
    ],
)
def test_where_environments_run_is_said_in_a_way_that_can_be_honoured(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.trace=0.9", "algorithm.trace was renamed to algorithm.gae_lambda"),
        ("algorithm.centre=old", "algorithm.centre was renamed to algorithm.ratio_base"),
        ("algorithm.foreign=mask", "algorithm.foreign was renamed to algorithm.off_policy"),
        ("speakers.stale=0.2", "speakers was renamed to cross_policy"),
    ],
)
def test_a_key_that_was_renamed_is_refused_with_its_new_name_in_files_and_overrides(tmp_path, override, message):
    key, _, value = override.partition("=")
    section, _, name = key.partition(".")
    file = tmp_path / "run.toml"
    file.write_text(f"[{section}]\n{name} = {value if value[0] == '0' else repr(value)}\n")
    for source in ((None, [override]), (file, [])):
        with pytest.raises(ConfigError, match=f"^{message}$"):
            load_config(*source)


def test_several_mistakes_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["trainer.lrr=1", "pipeline.steps=0"])
    assert "trainer.lrr" in str(caught.value)
    assert "pipeline.steps" in str(caught.value)


def test_a_wrong_choice_gets_the_near_one():
    with pytest.raises(
        ConfigError, match=r"engine\.kind is 'embeded'.*Did you mean 'embedded'.*embedded, server, chat"
    ):
        load_config(None, ["engine.kind=embeded"])


def test_a_value_where_a_section_belongs_is_told_its_keys():
    with pytest.raises(
        ConfigError,
        match=r"trainer: expected a section with keys betas, checkpoint_activations, compile, decay, lr.*got 5",
    ):
        parse_config({"trainer": 5})


def test_overrides_are_typed_and_come_after_the_file(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[trainer]\nlr = 1e-3\nwarmup_steps = 5\n[environments.guess.options]\nhigh = 9\n")
    overrides = [
        "trainer.lr=1e-4",
        "store.tensorboard=false",
        "environments.guess.options.high=20",
        "trainer.betas=[0.8, 0.9]",
    ]
    config = load_config(file, overrides)
    assert (config.trainer.lr, config.trainer.warmup_steps, config.store.tensorboard) == (1e-4, 5, False)
    assert config.trainer.betas == (0.8, 0.9)
    assert config.environments["guess"].options == {"high": 20}


@pytest.mark.parametrize("text", ["2024", "1e3", "true", "tiny", "run-2", '"quoted"'])
def test_where_text_is_expected_an_override_is_text(text):
    assert load_config(None, [f"name={text}"]).name == text.strip('"')


@pytest.mark.parametrize("override", ["trainer.lr", "=3", "", "trainer.lr.x=3"])
def test_an_override_that_is_none_is_rejected(override):
    with pytest.raises(ConfigError):
        load_config(None, [override])


def test_an_override_through_a_value_is_rejected_with_its_name(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("seed = 3\n")
    with pytest.raises(ConfigError, match="'seed' is a value, not a section"):
        load_config(file, ["seed.x=1"])


@pytest.mark.parametrize(
    "override",
    [
        "trainer.lr=inf",
        "trainer.lr=nan",
        "trainer.lr=-1",
        "pipeline.steps=2.5",
        "rollout.temperature=0",
        "sft.mistakes=2",
        "pipeline.steps=true",
        "trainer.lr=true",
        "environments.guess.max_turns=true",
    ],
)
def test_a_number_out_of_range_is_rejected_with_its_key(override):
    with pytest.raises(ConfigError, match=override.split("=")[0]):
        load_config(None, [override])


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", "/tmp/x"])
def test_a_run_name_stays_inside_the_runs_folder(name):
    with pytest.raises(
        ConfigError, match=r"^name is '.*'; expected another form\. .*Letters, digits, and \. _ \+ - inside"
    ):
        parse_config({"name": name})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.group_size=2", "rollout.min_group_size=3"], "min_group_size is 3.*group_size 2"),
        (["engine.kind=server"], "a url goes with kind 'server'"),
        (["engine.url=http://x"], "only with them"),
        (
            ["algorithm.ratio_base=behaviour", "algorithm.importance_cap=2"],
            "importance_cap is 2.0.*only with ratio_base 'old'",
        ),
        (
            ["algorithm.loss=reinforce", "algorithm.clip_high=0.3"],
            "clip_high is 0.3, but loss 'reinforce' has no such option.*: clip, cispo$",
        ),
        (["algorithm.loss=cispo", "algorithm.ratio=sequence"], "ratio is 'sequence', but loss 'cispo' has no.*: clip$"),
        (["algorithm.discount=0.9"], "discount is 0.9, but advantage 'group' has no.*return_to_go.*gae"),
        (["algorithm.kl_weight=0.1"], "kl_weight is 0.1, but kl 'none' has no.*: k1, k2, k3$"),
        (["algorithm.kl=k3"], "kl_weight is required with kl 'k3'"),
        (["algorithm.filter=top_share"], "filter_share is required with filter 'top_share'"),
        (["algorithm.filter_share=0.5"], "filter_share is 0.5, but filter 'zero_variance' has no"),
        (
            ["algorithm.filter=none", "algorithm.filter_rescale=sqrt"],
            "filter_rescale is 'sqrt', but filter 'none' has no",
        ),
        (["algorithm.aggregate=constant"], "aggregate_tokens is required with aggregate 'constant'"),
        (
            ["algorithm.advantage=leave_one_out", "algorithm.normalise=std"],
            "normalise: Input should be 'none' or 'batch'.*'std'",
        ),
        (["algorithm.normalise=batch", "algorithm.task_normalise=token"], "would undo it"),
        (["algorithm.dual_clip=1.1"], "inside the clip at 1.2"),
        (["algorithm.task_centre=false"], "task_centre is False, but task_normalise 'none' has no"),
        (["algorithm.importance_cap=0", "algorithm.importance=sequence"], "only with an importance_cap"),
    ],
)
def test_keys_that_contradict_each_other_are_rejected(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)


@pytest.mark.parametrize(
    ("content", "message"), [(b"seed = ", "not valid TOML"), (b"\xff\xfe", "not valid TOML"), (None, "does not exist")]
)
def test_a_run_file_that_cannot_be_read_is_named(tmp_path, content, message):
    file = tmp_path / "run.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"run\.toml.*{message}"):
        load_config(file)


def test_a_folder_given_as_run_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["algorithm.ratio_base=behaviour"],
        ["engine.kind=server", "engine.url=http://127.0.0.1:8000/v1"],
        ["environments.guess.at=workers", "workers.num=3", "workers.slots=8", "controller.wait_s=9"],
        ["environments.guess.max_turns=4", "environments.guess.options.deep={a=[1,2],b='x'}", "sft.min_reward=0.5"],
    ],
)
def test_the_resolved_run_reads_back_as_itself(tmp_path, overrides):
    config = load_config(None, overrides)
    file = tmp_path / "config.toml"
    file.write_text(dump_config(config))
    assert load_config(file) == config


def test_a_run_with_some_of_its_environments_reads_back_too():
    places = {"here": {}, "there": {"at": "http://a:7100"}, "beside": {"at": "workers"}}
    settings = {"workers": {"num": 2}, "controller": {"token_file": "t", "wait_s": 9.0}}
    run = parse_config({"environments": places, "horizons": {"here": {"turns": [2], "every": 1}}, **settings})
    for name, (num, file, wait_s) in {"here": (1, "", 300), "there": (1, "t", 9), "beside": (2, "", 9)}.items():
        part = run.only([name])
        assert parse_config(tomllib.loads(dump_config(part))) == part
        assert (part.workers.num, part.controller.token_file, part.controller.wait_s) == (num, file, wait_s)


def test_environments_that_are_asked_for_keep_what_the_file_says_about_them(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[environments.guess]\nweight = 3.0\n")
    environments = load_config(file, environments={"guess": "", "mine": "mine.py"}).environments
    assert {name: (each.weight, each.source) for name, each in environments.items()} == {
        "guess": (3.0, ""),
        "mine": (1.0, "mine.py"),
    }


@given(
    seed=st.integers(0, 2**31), lr=st.floats(1e-12, 1e3), folder=st.text(max_size=20).filter(lambda t: "\x00" not in t)
)
def test_any_value_survives_the_file(seed, lr, folder):
    config = parse_config({"seed": seed, "trainer": {"lr": lr}, "store": {"folder": folder}})
    assert parse_config(tomllib.loads(dump_config(config))) == config


def test_the_capacity_follows_from_the_bound():
    assert parse_config({"pipeline": {"max_staleness": 2, "groups_per_step": 3}}).pipeline.capacity == 9


def test_every_knob_whose_meaning_is_not_in_its_name_has_a_line_of_why():
    sections = [
        field.annotation for field in RunConfig.model_fields.values() if hasattr(field.annotation, "model_fields")
    ]
    described = [field.description for section in sections for field in section.model_fields.values()]
    assert sum(bool(text) for text in described) / len(described) > 0.6


def test_the_tree_imports_nothing_heavy():
    script = (
        "import sys, ludus.config; print(sorted({'torch', 'transformers', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_a_run_file_is_checked_without_torch():
    script = "import sys; from ludus.config import load_config; load_config(); print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "False"


@pytest.mark.parametrize(
    "overrides",
    [
        ["engine.kind=chat", "engine.url=https://me:secret@host/v1"],
        ["cross_policy.outside.x.url=http://secret@host/v1", "cross_policy.outside.x.chance=0.1"],
    ],
)
def test_an_endpoints_url_holds_no_secret_and_the_refusal_does_not_repeat_it(overrides):
    with pytest.raises(ConfigError, match=r"^(?!.*secret).*url holds a password.*LUDUS_API_KEY"):
        load_config(None, overrides)
    assert load_config(None, ["engine.kind=chat", "engine.url=http://host/v1/@org"]).engine.url.endswith("@org")


@pytest.mark.parametrize("override", ["engine.deterministic=true", "engine.threads=4", "engine.max_cached=7"])
def test_promise_8_what_a_server_decides_for_itself_is_refused(override):
    with pytest.raises(ConfigError, match="decides that for itself"):
        load_config(None, ["engine.kind=server", "engine.url=http://127.0.0.1:8000/v1", override])


@pytest.mark.parametrize(
    ("override", "resolved"),
    [
        ("ratio_base=behaviour", {"importance_cap": 0.0, "normalise": "std", "filter": "zero_variance"}),
        ("advantage=leave_one_out", {"normalise": "none", "filter": "zero_variance"}),
        ("advantage=reward", {"normalise": "none", "filter": "none"}),
        ("advantage=gigpo", {"normalise": "std", "filter": "none"}),
    ],
)
def test_defaults_that_follow_from_another_key_are_written_out_and_read_back(override, resolved):
    config = load_config(None, [f"algorithm.{override}"])
    assert {name: getattr(config.algorithm, name) for name in resolved} == resolved
    assert parse_config(tomllib.loads(dump_config(config))) == config
