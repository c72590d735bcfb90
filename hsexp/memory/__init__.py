"""Memory of hybrid models: the same code under the simulator and inside vLLM."""

from hsexp.memory.branching import exact_prefix
from hsexp.memory.build import build_memory
from hsexp.memory.config import MemoryConfig
from hsexp.memory.copies import Copy
from hsexp.memory.hybrid import HybridMemory, MemoryCounters
from hsexp.memory.observer import Observer
from hsexp.memory.pool import MemoryFault, PagePool, PoolSpec
from hsexp.memory.sequence import Depths, Hit, PrefixKeys, Refusal, SequenceMemory

__all__ = [
    "Copy",
    "Depths",
    "Hit",
    "HybridMemory",
    "MemoryConfig",
    "MemoryCounters",
    "MemoryFault",
    "Observer",
    "PagePool",
    "PoolSpec",
    "PrefixKeys",
    "Refusal",
    "SequenceMemory",
    "build_memory",
    "exact_prefix",
]
