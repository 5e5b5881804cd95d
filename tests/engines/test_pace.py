from ludus.engines.pace import BLOCKS, FEW, MANY, Pace


def paced(pace, *, waits, blocks=BLOCKS, busy_s=0.0):
    """Blocks of a second each, of which `waits` is spent waiting."""
    for number in range(1, blocks + 1):
        pace.collected(waited_s=waits, busy_s=busy_s + number, decoded=True)
    return pace.steps


def test_a_slow_host_gets_longer_blocks_and_a_slow_device_short_ones():
    pace = Pace()
    assert paced(pace, waits=0.6) == FEW
    assert paced(pace, waits=0.05, busy_s=4) == MANY
    assert paced(pace, waits=0.2, busy_s=8) == MANY, "in between it stays as it is"
    assert paced(pace, waits=0.6, busy_s=12) == FEW


def test_prompts_are_waited_for_too_but_blocks_are_what_counts():
    pace = Pace()
    for number in range(1, 50):
        pace.collected(waited_s=0.0, busy_s=number, decoded=False)
    assert pace.steps == FEW
