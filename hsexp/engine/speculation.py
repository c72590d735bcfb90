"""Draft-and-verify over a running engine: two requests a pass, which fork what is known.

    tokens     0 ... leaf ...... known | d1 d2 d3     3 drafts behind the last known token
    certain    [ fork ---------> known ]              the target's answer there, and a leaf
    drafted    [ fork ---------> known   d1 d2 d3 ]   its answer at each draft, and a leaf

    2 accepted   the next pass forks the leaf at `known`, and computes d1 and d2 on its way
    3 accepted   it forks the leaf behind d3

These are the two states of `hsexp.memory.branching.drafting`: one over what is certain, one over
the drafts. Here they are two requests of vLLM that run in one step, each on its copy of the leaf's
state and tail. A rejected draft has written to pages of the drafted request only, which are found
under no other tokens: there is nothing to undo. A step ends on the checkpoint grid, so a pass
across a boundary takes one step more, and leaves a state there from which another pass may start.
"""

from collections.abc import Sequence

import numpy as np
from vllm import LLMEngine, RequestOutput, SamplingParams
from vllm.logprobs import FlatLogprobs

from hsexp.engine.forks import MAX_HIT
from hsexp.speculation.decoding import LanguageModel, SpeculativeDecoder
from hsexp.speculation.sampling import Probabilities

ALL = -1
"""vLLM's number of log probabilities for the whole vocabulary."""


class EngineTarget:
    """The target model, served by a vLLM engine that has nothing else to do meanwhile.

    The engine must allow all log probabilities (`max_logprobs=-1`). vLLM makes room for them at
    every token of the prompt, asked for or not: host memory and time of a pass grow with vocabulary
    times length. Without `max_leaves` a pass computes from the last boundary.
    """

    def __init__(self, engine: LLMEngine, *, temperature: float) -> None:
        """
        Args:
            temperature: of the distributions; 0 gives all to the likeliest token.
        """
        self.engine = engine
        self.temperature = temperature
        self._vocabulary = engine.model_config.get_vocab_size()
        self._known: list[int] = []
        """Known tokens of the last pass, with a leaf at their end."""
        self._num_requests = 0

    def distribution(self, tokens: Sequence[int]) -> Probabilities:
        return self.distributions(tokens, ())[0]

    def distributions(self, known: Sequence[int], drafts: Sequence[int]) -> list[Probabilities]:
        """Distributions after the known tokens, and after each of the drafts behind them."""
        known = list(known)
        is_new = not self._known or known[: len(self._known)] != self._known
        if drafts and is_new and len(known) > 1:
            self._run(_request(known[:-1]))  # else both requests of the pass compute the prompt
        self._known = known
        if not drafts:
            (certain,) = self._run(_request(known))
            return [self._sampled(certain)]
        certain, drafted = self._run(
            _request(known), _request([*known, *drafts], num_known=len(known))
        )
        verified = drafted.prompt_logprobs
        assert isinstance(verified, FlatLogprobs)
        # vLLM's entry at a place of a prompt is the distribution given the tokens before it.
        places = range(len(known) + 1, len(known) + len(drafts))
        return [
            self._sampled(certain),
            *(self._probabilities(verified, place) for place in places),
            self._sampled(drafted),
        ]

    def _run(self, *requests: tuple[list[int], SamplingParams]) -> list[RequestOutput]:
        """Run requests together to their ends."""
        ids = []
        for tokens, params in requests:
            self._num_requests += 1
            ids.append(f"pass-{self._num_requests}")
            self.engine.add_request(ids[-1], {"prompt_token_ids": tokens}, params)
        outputs: dict[str, RequestOutput] = {}
        while self.engine.has_unfinished_requests():
            outputs |= {output.request_id: output for output in self.engine.step()}
        return [outputs[each] for each in ids]

    def _sampled(self, output: RequestOutput) -> Probabilities:
        """The distribution that the only token was drawn from."""
        logprobs = output.outputs[0].logprobs
        assert isinstance(logprobs, FlatLogprobs)
        return self._probabilities(logprobs, 0)

    def _probabilities(self, logprobs: FlatLogprobs, place: int) -> Probabilities:
        entries = slice(logprobs.start_indices[place], logprobs.end_indices[place])
        scores = np.full(self._vocabulary, -np.inf)
        scores[logprobs.token_ids[entries]] = logprobs.logprobs[entries]
        if self.temperature == 0.0:
            greedy: Probabilities = np.zeros(self._vocabulary)
            greedy[scores.argmax()] = 1.0
            return greedy
        weights = np.exp((scores - scores.max()) / self.temperature)
        probabilities: Probabilities = weights / weights.sum()
        return probabilities


class EngineDecoder(SpeculativeDecoder):
    """Speculative decoding whose target computes a pass at once."""

    target: EngineTarget

    def __init__(
        self, target: EngineTarget, drafter: LanguageModel, rng: np.random.Generator
    ) -> None:
        super().__init__(target, drafter, rng)

    def target_distributions(
        self, known: Sequence[int], drafts: Sequence[int]
    ) -> list[Probabilities]:
        return self.target.distributions(known, drafts)


def _request(
    tokens: list[int], *, num_known: int | None = None
) -> tuple[list[int], SamplingParams]:
    """A prompt and one token more.

    Args:
        num_known: tokens before the drafts. Computation begins there or before, since every draft
            needs its logits; None without drafts.
    """
    has_drafts = num_known is not None
    params = SamplingParams(
        temperature=0.0,
        max_tokens=1,
        ignore_eos=True,
        detokenize=False,
        logprobs=ALL,
        prompt_logprobs=ALL if has_drafts else None,
        flat_logprobs=True,
        skip_reading_prefix_cache=False,  # vLLM would, to have logits at every token of the prompt
        extra_args={MAX_HIT: num_known} if has_drafts else None,
    )
    return tokens, params
