import gc

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
