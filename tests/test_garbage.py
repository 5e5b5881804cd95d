import gc
import time
import weakref

from ludus import garbage
from ludus.garbage import THRESHOLDS, rarely_collected


def test_what_was_there_before_is_left_alone_until_the_end():
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    mine = [[]]
    with rarely_collected():
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > frozen
        assert not any(each is mine for each in gc.get_objects()), "the collector does not visit it"
    assert gc.get_threshold() == before
    assert any(each is mine for each in gc.get_objects())


class Kept:
    def __init__(self):
        self.me = self


def test_cycles_are_found_now_and_then_however_few_they_are(monkeypatch):
    monkeypatch.setattr(garbage, "EVERY_S", 0.01)
    with rarely_collected():
        dead = weakref.ref(Kept())
        deadline = time.monotonic() + 30
        while dead() is not None:
            assert time.monotonic() < deadline, "nobody looks"
            time.sleep(0.01)
