"""Demand: which distinct requests asked for a checkpoint."""

from typing import Annotated

from pydantic import Field, PositiveInt

DemandKeys = Annotated[PositiveInt | None, Field(exclude_if=lambda value: value is None)]
"""Keys whose requesters are remembered, those asked for longest ago being forgotten first; null
remembers all of them, for ever."""
