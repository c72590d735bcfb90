"""Keys from a live list of block hashes, as vLLM makes them; it needs no vLLM."""

import pytest

from hsexp.engine.keys import EveryNth, prefix_keys


def test_a_block_of_several_hashes_has_the_one_that_ends_it() -> None:
    # Hashes of 16 tokens each; blocks of 32, boundaries of 64.
    hashes = [f"to {end}" for end in range(16, 145, 16)]  # 144 tokens
    keys = prefix_keys(hashes, hash_block_size=16, block_size=32, checkpoint_grid=64)
    assert [*keys.attention] == ["to 32", "to 64", "to 96", "to 128"]
    assert [*keys.checkpoints] == ["to 64", "to 128"]
    assert keys.attention[1] == "to 64"


@pytest.mark.parametrize("stop", [None, 2, 3, 9])
@pytest.mark.parametrize("start", [None, 0, 1, 3])
def test_a_slice_of_keys_is_the_slice_of_the_list_of_keys(
    start: int | None, stop: int | None
) -> None:
    keys = EveryNth([*range(11)], 3)  # 2, 5, 8, and two hashes of a block that is not full
    assert [*keys[start:stop]] == [2, 5, 8][start:stop]


def test_keys_grow_with_the_hashes() -> None:
    hashes = ["a"]
    keys = prefix_keys(hashes, hash_block_size=8, block_size=16, checkpoint_grid=8)
    assert (len(keys.attention), len(keys.checkpoints)) == (0, 1)
    hashes.append("b")
    assert ([*keys.attention], [*keys.checkpoints]) == (["b"], ["a", "b"])


@pytest.mark.parametrize(("block_size", "checkpoint_grid"), [(24, 32), (32, 40)])
def test_blocks_and_boundaries_that_end_inside_a_hash_are_refused(
    block_size: int, checkpoint_grid: int
) -> None:
    with pytest.raises(ValueError, match="must be a multiple of the hash block size 16"):
        prefix_keys([], hash_block_size=16, block_size=block_size, checkpoint_grid=checkpoint_grid)
