"""Types of fields that several settings share."""

from typing import Annotated

from pydantic import Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
OpenFraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]+$")]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
