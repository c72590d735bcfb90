"""Sequences that continue from one state: forks and their copies, kept leaves, drafts, beams.

All of it builds on the cache; the core's own path makes one check a step for it.
"""
