"""Draft tokens: what a verification pass may throw away, and how far the state goes with it.

    tokens     ..... s ........ known | d1 d2 d3          3 drafts behind the last known token
    state        S   s ------> known                      over tokens that are certain: in place
    scratch                    known ------> known + 3    over the drafts: out of place, no copy

    2 accepted   scratch goes; the state stands at `known`, and the next pass computes d1 and d2
                 again on its way
    3 accepted   scratch becomes the state

So the state never holds a rejected token, and there is nothing to undo in it. The other way is a
scratch state for every draft, of which the right one stays: no token twice, but num_drafts states
where this takes one, and a hybrid state weighs as much as the KV of hundreds of tokens. Attention
needs no rollback: what lies beyond the accepted tokens is overwritten, and blocks get their keys
only once the state has passed them.

Drafts are optional: `draft` may say no, and the pass then is an ordinary step.
"""

from hsexp.memory.cache import Cache
from hsexp.memory.pool import MemoryFault
from hsexp.memory.sequence import SequenceMemory


class Drafting:
    """Room for drafts beside the sequences of one cache.

    A pass over a sequence: `memory.extend` over the known tokens, `draft`, computation, `settle`.
    """

    def __init__(self, cache: Cache, *, max_drafts: int) -> None:
        self.cache = cache
        self.max_drafts = max_drafts
        """Drafts of one pass; 0 drafts nothing, and admission counts nothing for it."""

    def num_drafts(self, known: int) -> int:
        """Drafts of the pass that makes the state stand at `known`: none beyond the next boundary
        of the checkpoint grid, so that a state is there to be published."""
        return min(self.max_drafts, -known % self.cache.checkpoint_grid)

    def draft(self, sequence: SequenceMemory, known: int, num_drafts: int) -> bool:
        """Room for drafts behind `known`, to which the coming step extends the sequence.

        False means that there is not enough room; nothing has moved.

        Raises:
            MemoryFault: more drafts than `num_drafts` allows, or the last pass is not settled.
        """
        if not 0 < num_drafts <= self.num_drafts(known):
            raise MemoryFault(
                f"request {sequence.request_id} may draft 1 to {self.num_drafts(known)} tokens "
                f"behind {known}, not {num_drafts}"
            )
        if sequence.scratch is not None:
            raise MemoryFault(f"request {sequence.request_id} drafts before its pass is settled")
        cache = self.cache
        new_blocks = max(-(-(known + num_drafts) // cache.block_size) - len(sequence.blocks), 0)
        if not cache.has_room(new_blocks, True):
            return False
        sequence.blocks += cache.attention_pool.take(new_blocks)
        sequence.scratch = cache.states.allocate()
        if cache.observer is not None:
            cache.observer.on_allocate(sequence, new_blocks, 1)
        return True

    def settle(
        self, sequence: SequenceMemory, known: int, *, num_drafts: int, num_accepted: int
    ) -> int:
        """The pass was computed and verified. Returns where the state stands now, in tokens.

        The accepted tokens are known by now: the sequence's keys reach over them.

        Raises:
            MemoryFault: nothing was drafted, or more was accepted than was drafted.
        """
        if sequence.scratch is None:
            raise MemoryFault(f"request {sequence.request_id} settles a pass without drafts")
        if not 0 <= num_accepted <= num_drafts:
            raise MemoryFault(
                f"request {sequence.request_id} accepts {num_accepted} of {num_drafts} drafts"
            )
        cache, scratch = self.cache, sequence.scratch
        sequence.scratch = None
        if num_accepted < num_drafts:
            cache.release_state(scratch)
            return known
        assert sequence.state is not None
        cache.release_state(sequence.state)
        sequence.state = scratch
        end = known + num_drafts
        if end % cache.checkpoint_grid == 0:
            cache.publish_computed(sequence, end)
            cache.publish_state(sequence, scratch, end, step=cache.step)
        return end
