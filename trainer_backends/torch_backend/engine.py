"""Continuous batching: replies of many episodes are generated together, each leaves when it is done.

A request joins the running batch at the next token, and its place is free again with its last one: no request waits
for another. Prompts share what they have in common: each place of the cache remembers its tokens, and a prompt is
computed only from where it differs from the most similar one, its own earlier turn or a group member's, in the very
pass that generates the others' next token.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InvalidRequest
from ..algorithms.thinking import Control
from .decoder import Prompts
from .decoding import make_decoder
from .sampling import Drawn, Sampling, draw

PREFILL_TOKENS = (16_384, 1024)
"""Padded tokens of prompts that are computed at a time, elsewhere and on the CPU."""
COPY_FROM = 8
"""Tokens in common from which on it pays to copy them from a place that stays in use."""


@dataclass(eq=False)
class Request:
    """One reply, wanted or being generated.

    Attributes:
        prompt: token ids.
        sampling: how to generate.
        rng: source of the reply's randomness; it belongs to the episode.
        ids: tokens so far.
        logprobs: of each, see ``Drawn``.
        entropies: of the distribution each was drawn from.
        scores: uncertainty signal of each, where the engine has a control with one.
        forced: whether each was forced and not drawn.
        causes: why tokens were forced.
        stopped: "stop" at an end token, "length" at the limit, "dropped" if nobody waits for it any more, "" before.
        reused: prompt tokens that were taken from the cache.
    """

    prompt: Sequence[int]
    sampling: Sampling
    rng: np.random.Generator
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    scores: list[float] | None = None
    forced: list[bool] | None = None
    causes: tuple[str, ...] = ()
    stopped: str = ""
    reused: int = 0
    future: asyncio.Future[Request] | None = None
    uniform: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


class Engine:
    """Generates replies with one model.

    Args:
        model: any causal language model of transformers, also with LoRA.
        stop: ids of tokens that end a reply.
        slots: replies generated at a time.
        places: rows of the cache; those beyond ``slots`` keep earlier turns.
        control: token control and signal (``algorithms/token_control``), None for none.

    Attributes:
        generated: tokens so far.
        prefilled: prompt tokens computed so far.
        steps: tokens that the batch has been given so far.
        seconds: spent in them, prompts included.
    """

    def __init__(
        self,
        model: Any,
        stop: Collection[int],
        *,
        slots: int = 64,
        places: int | None = None,
        control: Control | None = None,
    ) -> None:
        self.stop = frozenset(stop)
        self.control = control
        self.slots = slots
        self.decoder = make_decoder(model, max(places or 2 * slots, slots))
        self.waiting: deque[Request] = deque()
        self.active: list[Request] = []
        """The requests in the first places, in their order."""
        self.steps = 0
        self.seconds = 0.0
        self.generated = 0
        self.prefilled = 0
        self._held = np.full((self.decoder.places, 64), -1, dtype=np.int64)
        self._used = np.zeros(self.decoder.places, dtype=np.int64)
        self._clock = 0
        self._runner: asyncio.Task[None] | None = None
        self._futures: set[asyncio.Future[Request]] = set()

    # Asynchronous use ------------------------------------------------------------------------------

    async def generate(self, prompt: Sequence[int], sampling: Sampling, rng: np.random.Generator) -> Request:
        """Generate one reply, together with all others that are asked for meanwhile.

        Raises:
            InvalidRequest: prompt and reply are longer than the model takes.
        """
        request = self.submit(prompt, sampling, rng)
        request.future = asyncio.get_running_loop().create_future()
        self._futures.add(request.future)
        request.future.add_done_callback(self._futures.discard)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        try:
            return await request.future
        except asyncio.CancelledError:
            if request in self.waiting:
                self.waiting.remove(request)
            request.stopped = "dropped"  # one that is being generated leaves with its next token
            raise

    async def _run(self) -> None:
        try:
            while self.waiting or self.active:
                # Episodes whose turn came back get the chance to ask for the next one before the batch goes on.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                for request in self.step():
                    if request.future is not None and not request.future.done():
                        request.future.set_result(request)
        except Exception as error:
            # Whoever waits must learn of it, whatever state the batch was left in.
            for future in list(self._futures):
                if not future.done():
                    future.set_exception(error)
            self.waiting.clear()
            self.reset()

    # Synchronous use -------------------------------------------------------------------------------

    def submit(self, prompt: Sequence[int], sampling: Sampling, rng: np.random.Generator) -> Request:
        """Queue a request; :meth:`step` works on it.

        Raises:
            InvalidRequest: the prompt is empty, or prompt and reply are longer than the model takes.
        """
        if not prompt:
            raise InvalidRequest("The prompt has no token.", hint="Send at least one.")
        if len(prompt) + sampling.max_tokens > self.decoder.limit:
            raise InvalidRequest(
                f"Prompt ({len(prompt)} tokens) and reply (up to {sampling.max_tokens}) are longer than the model "
                f"takes ({self.decoder.limit}).",
                hint="Shorten the memory of the prompt, or the reply.",
            )
        request = Request(prompt, sampling, rng, uniform=rng.random(sampling.max_tokens))
        self.waiting.append(request)
        return request

    def step(self) -> list[Request]:
        """Admit what fits, generate one token for every active request, and return those that are done."""
        began = time.perf_counter()
        ids = torch.tensor([request.ids[-1] for request in self.active], dtype=torch.long, device=self.decoder.device)
        admitted = self._admit()
        done = self._retired(self._take(self._computed(ids, admitted), ids)) if self.active else []
        self.steps += 1
        self.seconds += time.perf_counter() - began
        return done

    def run(self) -> Iterator[Request]:
        """Work until nothing is left; yield the requests as they are done."""
        while self.waiting or self.active:
            yield from self.step()

    def reset(self) -> None:
        """Forget everything cached, as is needed when the weights have changed; active requests are dropped."""
        if self.control is not None:
            for place in range(self.decoder.places):
                if place in self.control:
                    self.control.remove(place)
        self.active.clear()
        self.decoder.lengths.zero_()
        self._held.fill(-1)

    # Inside ----------------------------------------------------------------------------------------

    def _admit(self) -> list[int]:
        """Bring waiting requests into the batch; return for each the place of the first that has its prompt."""
        twins: list[int] = []
        seen: dict[tuple[int, ...], int] = {}
        while self.waiting and len(self.active) < self.slots:
            request = self.waiting.popleft()
            place = len(self.active)
            twin = seen.setdefault(tuple(request.prompt), place)
            prompt = np.asarray(request.prompt, dtype=np.int64)
            self._place(prompt if twin == place else prompt[:0], request)
            if self.control is not None:
                self.control.add(place, request.prompt)
            twins.append(twin)
        return twins

    def _place(self, prompt: NDArray[np.int64], request: Request) -> None:
        """Choose a place for a request, with as much of its prompt as the cache holds, and make it active."""
        first_idle = len(self.active)
        common = self._common(prompt)
        idle = common[first_idle:]
        place = first_idle + int(idle.argmax())
        source = int(common.argmax())
        reuse = int(common[place])
        if common[source] >= reuse + COPY_FROM or reuse == 0:
            # The place that was not used for longest gives way.
            place = first_idle + int(self._used[first_idle:].argmin())
            reuse = int(common[source])
            if reuse:
                self.decoder.copy(source, place, reuse)
        self.decoder.lengths[place] = reuse
        self._hold(place, prompt[:reuse])
        request.reused = reuse
        self._swap(place, first_idle)
        self.active.append(request)

    def _common(self, prompt: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens every place has in common with a prompt; its last one is always computed anew."""
        width = min(len(prompt) - 1, self._held.shape[1])
        if width <= 0:
            return np.zeros(self.decoder.places, dtype=np.int64)
        equal = self._held[:, :width] == prompt[:width]
        return np.where(equal.all(1), width, equal.argmin(1))

    def _computed(self, ids_B: Tensor, twins: list[int]) -> Tensor:
        """Compute the next token of all requests: those that go on, and those whose prompts are new, in one pass.

        Many new prompts take passes of their own before it.
        """
        going = len(ids_B)
        joining = [place for place, twin in enumerate(twins, going) if place == twin]
        new = {place: len(self.active[place].prompt) - self.active[place].reused for place in joining}
        # Alike in length, so that little is padding, and few at a time, so that they stay in the processor's cache.
        order = sorted(joining, key=new.__getitem__)
        budget = PREFILL_TOKENS[self.decoder.device.type == "cpu"]
        passes: list[list[int]] = []
        while order:
            few = max(1, budget // new[order[-1]])
            passes.append(order[-few:])
            del order[-few:]
        before = [self.decoder.step(ids_B[:0], self._prompts(places)) for places in passes[:-1]]
        last = self.decoder.step(ids_B, self._prompts(passes[-1]) if passes else None)
        for place, twin in enumerate(twins, going):
            request = self.active[place]
            if place != twin:
                self.decoder.copy(twin, place, len(request.prompt))
                request.reused = len(request.prompt)
            self._hold(place, np.asarray(request.prompt, dtype=np.int64))
        self.prefilled += sum(new.values())
        row = {place: going + number for number, place in enumerate(itertools.chain.from_iterable(passes))}
        rows = [*range(going), *(row[twin] for twin in twins)]
        logits = torch.cat([last[:going], *before, last[going:]]) if before else last
        return logits if rows == list(range(len(logits))) else logits[rows]

    def _prompts(self, places: list[int]) -> Prompts:
        """Return what is new of the prompts in some places."""
        parts = [self.active[place].prompt[self.active[place].reused :] for place in places]
        counts = [len(part) for part in parts]
        ids = np.zeros((len(parts), max(counts)), dtype=np.int64)
        for row, part in zip(ids, parts, strict=True):
            row[: len(part)] = part
        device = self.decoder.device
        return Prompts(
            torch.from_numpy(ids).to(device), torch.tensor(places, device=device), torch.tensor(counts, device=device)
        )

    def _hold(self, place: int, tokens: NDArray[np.int64]) -> None:
        if len(tokens) > self._held.shape[1]:
            wider = np.full((self.decoder.places, max(len(tokens), 2 * self._held.shape[1])), -1, dtype=np.int64)
            wider[:, : self._held.shape[1]] = self._held
            self._held = wider
        self._held[place, : len(tokens)] = tokens
        self._held[place, len(tokens) :] = -1

    def _take(self, logits: Tensor, last: Tensor) -> list[Request]:
        """Draw the next token of all active requests; return those that are done.

        ``last`` are the tokens before; the last requests, which have just come, have none.
        """
        forced = None
        if self.control is not None:
            forced = self.control.step(logits, F.pad(last, (0, len(self.active) - len(last))))
        drawn = self._draw(logits)
        if forced is not None:
            drawn = drawn.forced(forced.mask_B, forced.tokens_B, logits)
        done = []
        for request, token, logprob, entropy in zip(
            self.active, drawn.ids_B.tolist(), drawn.logprobs_B.tolist(), drawn.entropies_B.tolist(), strict=True
        ):
            request.ids.append(token)
            request.logprobs.append(logprob)
            request.entropies.append(entropy)
            if token in self.stop:
                request.stopped = "stop"
            elif len(request.ids) == request.sampling.max_tokens:
                request.stopped = "length"
            if request.stopped:
                done.append(request)
        self.generated += len(self.active)
        return done

    def _draw(self, logits: Tensor) -> Drawn:
        samplings = [request.sampling for request in self.active]
        uniform = [request.uniform[len(request.ids)] for request in self.active]
        options: dict[str, Tensor] = {}
        if any(sampling.truncates for sampling in samplings):
            options["top_p_B"] = torch.tensor([sampling.top_p for sampling in samplings], device=logits.device)
            options["top_k_B"] = torch.tensor([sampling.top_k for sampling in samplings], device=logits.device)
        temperature = torch.tensor([sampling.temperature for sampling in samplings], device=logits.device)
        return draw(logits, temperature, torch.tensor(uniform, dtype=torch.float32, device=logits.device), **options)

    def _retired(self, done: list[Request]) -> list[Request]:
        for request in reversed(done):  # from the last place on: where many end together, nothing is moved
            self._retire(self.active.index(request))
        return done

    def _retire(self, place: int) -> None:
        """Take a finished request out of the batch; its place keeps its tokens, but for the last, never computed."""
        request = self.active[place]
        last = len(self.active) - 1
        if self.control is not None:
            trace = self.control.remove(place)
            request.scores = None if trace.scores_T is None else trace.scores_T.tolist()
            request.forced = trace.forced_T.tolist()
            request.causes = trace.causes
            if place != last:
                self.control.move(last, place)
        self._hold(place, np.asarray([*request.prompt, *request.ids[:-1]], dtype=np.int64))
        self._swap(place, last)
        self.active[place] = self.active[last]
        self.active.pop()
        self._clock += 1
        self._used[last] = self._clock

    def _swap(self, first: int, second: int) -> None:
        if first != second:
            self.decoder.swap(first, second)
            self._held[[first, second]] = self._held[[second, first]]
            self._used[[first, second]] = self._used[[second, first]]
