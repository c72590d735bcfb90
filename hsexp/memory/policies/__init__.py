"""Policies of the memory: each file holds one rule and the settings that build it.

`hsexp.memory.config.MemoryConfig` has a field for every kind of policy. A rule is chosen in the
`build` of its settings and nowhere else; the memory depends only on its Protocol.
"""
