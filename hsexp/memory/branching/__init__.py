"""Sequences that go on from one state: forks and their copies, kept leaves, drafts, beams.

All of it stands on the cache; the core's own path asks it one question a step.
"""
