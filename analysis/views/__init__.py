"""Looks at one traced run: a page, a Perfetto file, and why a request waited.

run        finds the run that a command names, and says what ran
clock      when each event happened
lanes      requests as phases: waiting, prefill, decode, preempted
states     checkpoints, each over its whole life
reuse      what a request could have reused, and who evicted it
refusals   why a waiting request was not admitted
pools      owners of pages over time
timeline   the page: one HTML file that needs nothing else
perfetto   the same as a trace of Chrome or Perfetto
why        the answer in sentences

Every view follows from a trace alone (`hsexp.trace`), which is the same from both engines.
"""
