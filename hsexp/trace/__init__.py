"""State traces: who had which state, when, and what it cost (Sections 4.5, 5.5, D.4; Appendix F).

schema       kinds of events and their columns
recorder     turns events of the memory and the scheduler into rows, in both engines
integrity    what makes a trace whole
supply       what could be reused at each moment, under the masks M0 and M1
episodes     what each request could reuse at its entry and at its admission
lives        identities of pages, whose ids are reused
lineage      which events changed that in between
ownership    whose states were adopted, and which states a policy kept
file         writes rows while an engine runs, and reads them back; a torn file is no trace
trace        a verified trace: its events by kind
pools        pages by owner over time, replayed from their moves
slabs        slots of slabs over time, replayed
compare      what two traces of the same schedule have in common
work         submitted tokens, forwards and event time by phase
contexts     what decoding requests have in memory before each step
shortages    calls that ask a pool for pages, and what followed
usage        stranded bytes, slabs and padding over the steps
agreement    counts that the trace and the run both have

A trace is one table, in order of its sequence numbers. The first event describes the memory, the
last one counts the events. Without the last one a run has no trace, however many requests it
finished.
"""

from hsexp.trace.recorder import TraceRecorder
from hsexp.trace.schema import SCHEMA_VERSION, TraceError
from hsexp.trace.trace import Trace

__all__ = ["SCHEMA_VERSION", "Trace", "TraceError", "TraceRecorder"]
