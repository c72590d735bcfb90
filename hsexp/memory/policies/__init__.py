"""Policies of the memory: each file holds one rule and its settings."""
