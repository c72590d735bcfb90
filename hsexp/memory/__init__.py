"""Memory of hybrid models: the same code under the simulator and inside vLLM."""

from hsexp.memory.branching.leaves import exact_prefix
from hsexp.memory.build import build_memory
from hsexp.memory.cache import Cache, MemoryCounters
from hsexp.memory.config import MemoryConfig
from hsexp.memory.faults import MemoryFault
from hsexp.memory.hybrid import HybridMemory
from hsexp.memory.observer import Observer
from hsexp.memory.pool import PagePool, PoolSpec
from hsexp.memory.sequence import Copy, Hit, PrefixKeys, Refusal, SequenceMemory

__all__ = [
    "Cache",
    "Copy",
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
