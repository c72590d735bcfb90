"""Settings of a memory: how many bytes it has."""

from pydantic import PositiveInt

from hsexp.config.base import Config
from hsexp.config.fields import Name


class BudgetConfig(Config):
    """Nominal bytes for all state of one layer (Section 4.1, Table B-2)."""

    name: Name
    bytes: PositiveInt
