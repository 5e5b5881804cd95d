import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.models.attention.tree import COLUMNS, ROWS, WHOLLY, Tree, seen_tiles
from ludus.trainer.pack import subtree_ends, trie


def family(seed=0):
    """Rows as sessions make them: a common prompt, then turns that part at different places; 600 tokens, 1,500 without sharing."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, 9, 300)
    rows = [
        np.concatenate([prompt[:n], rng.integers(0, 9, own)]) for n, own in ((300, 40), (300, 1), (200, 90), (40, 30))
    ]
    rows += [np.concatenate([rows[0][:320], rng.integers(0, 9, 60)]), rng.integers(0, 9, 130)]
    return sorted(rows, key=lambda row: row.tolist())


def dense(ends):
    at = np.arange(len(ends))
    return (at[None, :] <= at[:, None]) & (at[:, None] < ends[None, :])


def tiled(table, *, beyond):
    """(blocks of queries, blocks of keys, ROWS, COLUMNS)"""
    rows, columns = (-(-len(table) // size) * size for size in (ROWS, COLUMNS))
    padded = np.full((rows, columns), beyond)
    padded[: len(table), : len(table)] = table
    return padded.reshape(rows // ROWS, ROWS, -1, COLUMNS).swapaxes(1, 2)


def holding_a_pair(ends):
    return tiled(dense(ends), beyond=False).any(axis=(2, 3))


def holding_all_pairs(ends):
    """Queries beyond the last have nobody to answer to; keys beyond it must not be read."""
    table = tiled(dense(ends), beyond=True)
    complete = np.arange(table.shape[1]) < len(ends) // COLUMNS
    return table.all(axis=(2, 3)) & complete


def assert_tiles_are_right(ends):
    tree, tiles = Tree.of(ends, device="cpu"), seen_tiles(ends)
    assert tiles[holding_a_pair(ends)].all(), "every tile with a pair is visited"
    assert not np.triu(tiles[:, :: ROWS // COLUMNS], 1).any(), "and none behind the queries"
    assert np.array_equal(tiles == WHOLLY, holding_all_pairs(ends))
    for table, counts, lists in (
        (tiles, tree.row_counts, tree.row_lists),
        (tiles.T, tree.column_counts, tree.column_lists),
    ):
        for row, (wholes, visited), listed in zip(table, counts.tolist(), lists.tolist(), strict=True):
            assert listed[:wholes] == np.flatnonzero(row == WHOLLY).tolist()
            assert sorted(listed[:visited]) == np.flatnonzero(row).tolist()


def test_the_tiles_of_a_family_of_sessions_are_those_in_which_somebody_sees_somebody():
    ends = subtree_ends(trie(family()))
    assert_tiles_are_right(ends)
    assert (seen_tiles(ends) > 0).sum() <= 1.3 * holding_a_pair(ends).sum(), "and few more"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 200)), min_size=1, max_size=6))
def test_any_trie_gets_its_tiles(steps):
    """(how much of the row before is kept, how many own tokens follow)"""
    rows, fresh = [np.zeros(0, np.int64)], 0
    for kept, own in steps:
        rows.append(np.concatenate([rows[-1][:kept], np.arange(fresh, fresh + own)]))
        fresh += own
    assert_tiles_are_right(subtree_ends(trie(rows[1:])))


def test_branches_that_do_not_see_each_other_share_no_tile():
    """Eight branches of 256 tokens behind 1,024 in common: nearly all that is visited has to be."""
    prompt = np.arange(1024)
    ends = subtree_ends(trie([np.concatenate([prompt, 2000 + 256 * i + np.arange(256)]) for i in range(8)]))
    assert np.array_equal(seen_tiles(ends) > 0, holding_a_pair(ends))
