"""Draft tokens: a scratch state for tokens that a verification pass may reject.

    tokens     ..... s ........ known | d1 d2 d3          3 drafts after the last known token
    state        S   s ------> known                      over tokens that are certain: in place
    scratch                    known ------> known + 3    over the drafts: out of place, no copy

    2 accepted   scratch is released; the state is at `known`, and the next pass computes d1 and d2
                 again
    3 accepted   scratch becomes the state

So the state never contains a rejected token, and needs no rollback. The alternative is a scratch
state for every draft, of which the right one is kept: it computes no token twice, but takes
num_drafts states instead of one, and a hybrid state is as large as the KV of hundreds of tokens.
Attention needs no rollback: KV beyond the accepted tokens is overwritten, and blocks get their keys
only once the state has passed them.

Drafts are optional: if `draft` returns False, the pass is an ordinary step.
"""

from hsexp.memory.cache import Cache
from hsexp.memory.faults import MemoryFault
from hsexp.memory.sequence import SequenceMemory


class Drafting:
    """Allocates scratch states for drafts of the sequences of one cache.

    A pass over a sequence: `memory.extend` over the known tokens, `draft`, computation, `settle`.
    """

    def __init__(self, cache: Cache, *, max_drafts: int) -> None:
        self.cache = cache
        self.max_drafts = max_drafts
        """Most drafts of one pass; 0 turns drafting off, and admission reserves nothing for it."""

    def num_drafts(self, known: int) -> int:
        """Most drafts of the pass that brings the state to `known`.

        Drafts stop at the next boundary of the checkpoint grid, so that its state can be published.
        """
        return min(self.max_drafts, -known % self.cache.checkpoint_grid)

    def draft(self, sequence: SequenceMemory, known: int, num_drafts: int) -> bool:
        """Allocate room for drafts after `known`, to which the coming step extends the sequence.

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
        if cache.observer is not None:
            cache.observer.on_act(sequence.request_id, "extend")
        sequence.blocks += cache.attention_pool.take(new_blocks)
        sequence.scratch = cache.states.allocate()
        if cache.observer is not None:
            cache.observer.on_state(sequence, sequence.scratch)
        return True

    def settle(
        self, sequence: SequenceMemory, known: int, *, num_drafts: int, num_accepted: int
    ) -> int:
        """Finish a pass that was computed and verified. Returns the tokens that the state covers.

        The sequence's keys must cover the accepted tokens by now.

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
