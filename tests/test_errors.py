import asyncio

import pytest

from ludus import errors
from ludus.errors import (
    ConfigError,
    EnvironmentFailed,
    LudusError,
    SandboxFailed,
    StoreFailed,
    border,
    describe,
    nearest,
)


def test_every_error_is_a_ludus_error_and_the_tree_at_the_top_names_it():
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
    assert all(issubclass(each, LudusError) for each in kinds)
    assert all(each.__name__ in (errors.__doc__ or "") for each in kinds)


def test_what_a_user_can_cause_is_a_value_error_too():
    assert issubclass(ConfigError, ValueError)
    assert issubclass(SandboxFailed, EnvironmentFailed)


def test_a_border_names_what_crosses_it_and_keeps_the_cause():
    with (
        pytest.raises(EnvironmentFailed, match="guess/3 turn 2: KeyError") as caught,
        border(EnvironmentFailed, "guess/3 turn 2"),
    ):
        raise KeyError("x")
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_failure_that_has_a_name_keeps_it():
    with pytest.raises(StoreFailed, match=r"^full$"), border(EnvironmentFailed, "somewhere"):
        raise StoreFailed("full")


@pytest.mark.parametrize("passing", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
def test_cancellation_and_interrupts_pass_a_border_unnamed(passing):
    with pytest.raises(passing), border(EnvironmentFailed, "somewhere"):
        raise passing


def test_foreign_code_that_raises_a_base_exception_is_named_too():
    class Odd(BaseException):
        pass

    with pytest.raises(EnvironmentFailed, match="Odd"), border(EnvironmentFailed, "somewhere"):
        raise Odd


def test_a_border_holds_around_awaits():
    async def cross():
        with border(EnvironmentFailed, "act"):
            await asyncio.sleep(0)
            raise RuntimeError("late")

    with pytest.raises(EnvironmentFailed, match="act: RuntimeError: late"):
        asyncio.run(cross())


def test_a_description_is_short_and_never_empty():
    assert describe(ValueError()) == "ValueError"
    assert len(describe(ValueError("x" * 10_000))) < 600


def test_a_near_name_is_suggested_and_a_far_one_is_not():
    assert nearest("lrr", ["lr", "betas"]) == " Did you mean 'lr'?"
    assert nearest("zzz", ["lr", "betas"]) == ""
