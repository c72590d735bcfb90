"""A run of two requests that can be counted by hand, and records like it."""

import pandas as pd

from hsexp.measure.records import REQUEST_COLUMNS, STEP_COLUMNS, RunRecord

# Two requests, A and B. Steps end at 1.5, 2.5 | 3.0, 3.5 | 3.75, 4.0.
#   A: waits 0.5-0.5, tokens at 1.5 2.5 3.0 3.5          gaps 1.0 0.5 0.5
#   B: waits 1.0-1.5, tokens at 2.5 3.0 3.5 3.75 4.0     gaps 0.5 0.5 0.25 0.25
A = {"request_id": 0, "prompt_tokens": 10, "generated_tokens": 4, "arrival_s": 0.5}
A |= {"first_scheduled_s": 0.5, "first_token_s": 1.5, "finish_s": 3.5, "prefill_tokens": 10}
B = {"request_id": 1, "prompt_tokens": 25, "generated_tokens": 5, "arrival_s": 1.0}
B |= {"first_scheduled_s": 1.5, "first_token_s": 2.5, "finish_s": 4.0, "prefill_tokens": 20}
B |= {"adopted_tokens": 5}
STEPS = [
    # start, steps, duration, decode, prefill, running, waiting
    (0.5, 1, 1.0, 0, 10, 1, 1),
    (1.5, 1, 1.0, 1, 20, 2, 0),
    (2.5, 2, 0.5, 2, 0, 2, 0),
    (3.5, 2, 0.25, 1, 0, 1, 0),
]


def record(requests=(A, B), steps=STEPS, **counters):
    blank = {
        "status": "finished",
        "reason": None,
        "output_tokens": 0,
        "num_preemptions": 0,
        "adopted_tokens": 0,
        "replayed_tokens": 0,
        "replayed_output_tokens": 0,
    }
    table = pd.DataFrame([blank | request for request in requests])
    columns = ["start_s", "num_steps", "step_s", "decode_tokens", "prefill_tokens"]
    step_table = pd.DataFrame(steps, columns=[*columns, "running", "waiting"])
    step_table["first_step"] = step_table["num_steps"].cumsum() - step_table["num_steps"]
    return RunRecord(
        requests=table.astype(REQUEST_COLUMNS)[list(REQUEST_COLUMNS)],
        steps=step_table.astype(STEP_COLUMNS)[list(STEP_COLUMNS)],
        counters=counters,
    )
