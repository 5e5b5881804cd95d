"""Where a command's output ends, however it is cut into pieces."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ludus.sandboxes.shell import Stream, script

MARKER = b"0123456789abcdef"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(at)]


@given(
    st.binary(max_size=200), st.integers(0, 255), st.lists(st.integers(0, 10_000), max_size=12), st.binary(max_size=20)
)
def test_output_ends_at_the_marker_however_it_arrives(output, code, cuts, later):
    stream = Stream(MARKER, 1000)
    for piece in pieces(output + MARKER + b"%d\n" % code, cuts):
        stream.add(piece)
    stream.add(later)
    assert stream.ended
    assert stream.data == output
    assert stream.exit_code == code


@given(st.binary(max_size=300).filter(lambda data: MARKER not in data), st.lists(st.integers(0, 10_000), max_size=12))
def test_without_its_marker_nothing_ends_and_nothing_is_lost(output, cuts):
    stream = Stream(MARKER, 1000)
    for piece in pieces(output, cuts):
        stream.add(piece)
    assert not stream.ended
    stream.give_up()
    assert stream.data == output


def test_a_part_of_the_marker_is_output():
    stream = Stream(MARKER, 1000)
    stream.add(MARKER[:-1])
    stream.add(b"!" + MARKER)
    stream.add(b"7\n")
    assert (stream.data, stream.exit_code) == (MARKER[:-1] + b"!", 7)


@given(st.text(alphabet=st.characters(blacklist_characters="\0", codec="utf-8"), max_size=50))
def test_the_marker_is_nowhere_whole_in_what_the_shell_is_sent(command):
    assert b"firstsecond" not in script(command.replace("firstsecond", ""), first="first", second="second")
