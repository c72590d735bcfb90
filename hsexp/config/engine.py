"""Engines: the simulator, real vLLM, or whichever of the two can run."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from hsexp.config.base import Config


class _Engine(Config):
    exact: bool
    """Continue with the bits of an isolated recomputation, whatever else runs: canonical chunks,
    and on real vLLM every request alone in the model (docs/continuation.md)."""


class SimEngine(_Engine):
    """The discrete-event engine: the same memory code under a step-time model."""

    name: Literal["sim"]


class LimitsConfig(Config):
    """Time limits of a real run. They do not change the numbers of a run that ends in time."""

    boot_s: PositiveFloat
    """Longest time from the start of the server until it is ready."""
    stall_s: PositiveFloat
    """Longest time without a token while a request is outstanding."""
    shutdown_s: PositiveFloat
    """Time that the server has to end before its process group is killed."""
    port_tries: PositiveInt
    """Free ports to try, one after the other, when another program takes a port first."""


class VllmEngine(_Engine):
    """Real vLLM with the plugin; `auto` uses it if a GPU and vllm are present."""

    name: Literal["vllm", "auto"]
    transport: Literal["http", "inproc"]
    """http: a server process and streamed completions; inproc: an engine process fed directly."""
    num_warmup_requests: Annotated[int, Field(ge=0)]
    """Sent one after the other before the run; the prefix cache is emptied after them."""
    max_retries: Annotated[int, Field(ge=0)]
    """Connections that one request may lose before the run fails."""
    limits: LimitsConfig


EngineConfig = Annotated[SimEngine | VllmEngine, Field(discriminator="name")]
