"""Depths of a lookup from the live indexes: what replayed ones must be."""

from hsexp.memory import HybridMemory, SequenceMemory


def live_depths(
    memory: HybridMemory, sequence: SequenceMemory, num_tokens: int
) -> tuple[int, int, int]:
    """Amax, Rmax and the joint depth of a lookup now, from the indexes, boundary by boundary."""
    cache, keys = memory.cache, sequence.keys
    boundaries = range(
        cache.checkpoint_grid,
        cache.attention.reach(sequence, num_tokens),
        cache.checkpoint_grid,
    )
    attention, recurrent, joint = [0], [0], [0]
    for boundary in boundaries:
        blocks = keys.attention[: boundary // cache.block_size]
        has_attention = all(key in cache.block_index.oldest for key in blocks)
        checkpoint = keys.checkpoints[boundary // cache.checkpoint_grid - 1]
        has_state = checkpoint in cache.checkpoint_index.oldest
        attention += [boundary] * has_attention
        recurrent += [boundary] * has_state
        joint += [boundary] * (has_attention and has_state)
    return max(attention), max(recurrent), max(joint)
