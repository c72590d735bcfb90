"""The clock of step times that were reckoned from a data sheet."""

from dataclasses import dataclass

from hsexp.config.roofline import RooflineStepTime
from hsexp.sim.steptime import PS_PER_NS, StepContext, to_ps


@dataclass(frozen=True, kw_only=True, slots=True)
class RooflineClock:
    """Terms of `RooflineStepTime` in picoseconds; a step is rounded down to nanoseconds."""

    fixed_ps: int
    weights_ps: int
    experts_ps: int
    expert_share: float
    decode_token_ps: int
    prefill_token_ps: int
    state_ps: int
    context_token_ps: int
    pair_fs: int
    """Femtoseconds: a pair takes less than a nanosecond."""

    @classmethod
    def of(cls, model: RooflineStepTime) -> "RooflineClock":
        return cls(
            fixed_ps=to_ps(model.fixed_s),
            weights_ps=to_ps(model.weights_s),
            experts_ps=to_ps(model.experts_s),
            expert_share=model.expert_share,
            decode_token_ps=to_ps(model.decode_token_s),
            prefill_token_ps=to_ps(model.prefill_token_s),
            state_ps=to_ps(model.state_s),
            context_token_ps=to_ps(model.context_token_s),
            pair_fs=to_ps(1e3 * model.pair_s),
        )

    @property
    def reads_context(self) -> bool:
        return True

    def step_ns(
        self, decode_tokens: int, prefill_tokens: int, context: StepContext | None = None
    ) -> int:
        if context is None:
            context = StepContext(num_chunks=1 if prefill_tokens else 0)
        read_ps = self.weights_ps + self._experts_ps(decode_tokens + prefill_tokens)
        multiply_ps = self.decode_token_ps * decode_tokens + self.prefill_token_ps * prefill_tokens
        return (
            self.fixed_ps
            + max(read_ps, multiply_ps)
            + self.state_ps * (decode_tokens + context.num_chunks)
            + self.context_token_ps * (context.decoding_tokens + context.chunk_tokens)
            + self.pair_fs * context.num_pairs // 1000
        ) // PS_PER_NS

    def _experts_ps(self, num_tokens: int) -> int:
        """Reading the experts that any of the tokens uses."""
        if not self.experts_ps:
            return 0
        return round(self.experts_ps * (1.0 - (1.0 - self.expert_share) ** num_tokens))
