"""A workload as a table, one row a request, from which the same workload can be made again."""

import pyarrow as pa

from hsexp.workload.request import Request, Segment, Workload

_SEGMENT = pa.struct(
    [("end_tokens", pa.int64()), ("content_id", pa.int64()), ("generated", pa.bool_())]
)
_SCHEMA = pa.schema(
    [
        ("request_id", pa.int64()),
        ("arrival_s", pa.float64()),
        ("prompt_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("segments", pa.list_(_SEGMENT)),
        ("cache_salt", pa.string()),
        ("after", pa.int64()),
        ("think_s", pa.float64()),
    ]
)
"""Every field of a request."""


def frozen(workload: Workload) -> pa.Table:
    """The requests of a workload, in their order."""
    rows = [
        {
            field: getattr(request, field)
            for field in _SCHEMA.names
            if field != "segments"  # frozen below
        }
        | {
            "segments": [
                {field.name: getattr(segment, field.name) for field in _SEGMENT}
                for segment in request.segments
            ]
        }
        for request in workload.requests
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def thawed(table: pa.Table, name: str) -> Workload:
    """The workload of a table.

    Raises:
        ValueError: the table is not one of requests, or has none.
    """
    if table.schema.names != _SCHEMA.names:
        raise ValueError(f"columns must be {', '.join(_SCHEMA.names)}")
    return Workload(
        name=name,
        requests=tuple(
            Request(**row | {"segments": tuple(Segment(**each) for each in row["segments"])})
            for row in table.to_pylist()
        ),
    )
