"""Records the depth of each kind of cached state when a request enters and is first admitted."""

from hsexp.memory.observer import Observer
from hsexp.memory.sequence import Depths, Hit, SequenceMemory

_NOTHING = Depths(attention=0, recurrent=0, joint=0)


class DepthRecorder(Observer):
    """Amax, Rmax and Jadopt of the first admission, Jenter of the arrival (Section 4.5, Q7)."""

    def __init__(self) -> None:
        self._entry: dict[int | str, Depths] = {}
        self._looked_up: dict[int | str, Depths] = {}
        self._admission: dict[int | str, Depths] = {}

    def on_enter(self, sequence: SequenceMemory, depths: Depths) -> None:
        self._entry[sequence.request_id] = depths

    def on_lookup(self, sequence: SequenceMemory, hit: Hit, depths: Depths) -> None:
        self._looked_up[sequence.request_id] = depths

    def on_adopt(self, sequence: SequenceMemory, hit: Hit) -> None:
        depths = self._looked_up.pop(sequence.request_id)
        self._admission.setdefault(sequence.request_id, depths)

    def columns(self, request_ids: list[int]) -> dict[str, list[int]]:
        """The columns of `DEPTH_COLUMNS`, in the order of the ids."""
        entry = [self._entry.get(i, _NOTHING) for i in request_ids]
        admission = [self._admission.get(i, _NOTHING) for i in request_ids]
        return {
            "entry_joint_tokens": [depths.joint for depths in entry],
            "attention_tokens": [depths.attention for depths in admission],
            "recurrent_tokens": [depths.recurrent for depths in admission],
        }
