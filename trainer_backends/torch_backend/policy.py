"""A model of this process as a policy: prompts in, token-exact completions out, with controls around the generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...client.policies.base import BasePolicy, Context
from ...client.policies.hosted import OVERFLOW
from ...errors import InvalidRequest
from ...records import Completion, Message
from .engine import Engine, Request
from .sampling import Sampling


class TorchPolicy(BasePolicy):
    """Answers prompts with an engine's model.

    Args:
        engine: generates.
        tokenizer: of the model; its chat template makes the prompt.
        sampling: how to generate.
        seed: of the policy's own randomness; each episode has its own generator.
        turn_control: samples turns again (TDS), None for none.
        name: name in records.
        max_prompt_tokens: longer prompts end the episode ("context_overflow").

    Attributes:
        version: of the weights, kept with every completion.

    Raises:
        InvalidRequest: a reply may fill the model's context and leave no room for a prompt.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        sampling: Sampling,
        *,
        seed: int = 0,
        turn_control: Any = None,
        name: str = "policy",
        max_prompt_tokens: int | None = None,
    ) -> None:
        limit = engine.decoder.limit
        if not 0 < sampling.max_tokens < limit:
            raise InvalidRequest(
                f"The model takes {limit} tokens in all, and replies may have {sampling.max_tokens or 'any number'}.",
                hint=f"Give --max-tokens, in a recipe sampling.max_tokens, a number well below {limit}.",
            )
        self.engine = engine
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.seed = seed
        self.turn_control = turn_control
        self.name = name
        self.max_prompt_tokens = max_prompt_tokens
        self.version = 0

    @property
    def room(self) -> int:
        """Tokens that a prompt may have."""
        left = self.engine.decoder.limit - self.sampling.max_tokens
        return min(left, self.max_prompt_tokens or left)

    async def act(self, context: Context) -> Completion:
        """Return the next reply; its ``info`` counts the samples of this turn that were thrown away."""
        prompt = self.prompt(context)
        if len(prompt) > self.room:
            return Completion("", prompt_ids=prompt, finish_reason=OVERFLOW, prompt_tokens=len(prompt))
        rng = context.rng(self.seed)
        if self.turn_control is not None:
            self._follow(context)
        discarded = tokens = 0
        while True:
            completion = await self.generate(prompt, rng)
            ids = completion.token_ids or []
            tokens += len(ids)
            if self.turn_control is None or not self._again(context, completion):
                break
            discarded += 1
        if discarded:
            completion.info |= {"discarded": discarded, "discarded_tokens": tokens - len(ids)}
        context.memory["ids"] = [*prompt, *ids]
        context.memory["messages"] = [*context.messages, Message(role="assistant", content=completion.text)]
        return completion

    def _follow(self, context: Context) -> None:
        """Tell the turn control whose turn this is: a new episode's, or that of a branch which goes on by itself."""
        before = context.memory.get("control")
        if before is None:
            self.turn_control.begin(id(context))
        elif before != id(context):
            self.turn_control.fork(before, id(context))
        context.memory["control"] = id(context)

    def _again(self, context: Context, completion: Completion) -> bool:
        control, tokens = self.turn_control, len(completion.token_ids or ())
        if completion.certainty is None:
            return bool(control.decide(id(context), None, tokens))
        scores = torch.tensor([completion.certainty], dtype=torch.float64)
        drawn = torch.tensor([[not forced for forced in completion.forced or [False] * tokens]])
        phi = float(control.config.phi(scores, drawn))
        return bool(control.decide(id(context), phi, tokens))

    async def generate(self, prompt_ids: Sequence[int], rng: np.random.Generator) -> Completion:
        """Return one reply to a prompt; see :class:`~turngym.trainer_backends.backend.TrainerBackend`."""
        return self._completion(await self.engine.generate(prompt_ids, self.sampling, rng))

    def _completion(self, request: Request) -> Completion:
        shown = request.ids[:-1] if request.stopped == "stop" else request.ids
        text = self.tokenizer.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        forced = request.forced if request.forced is not None and any(request.forced) else None
        return Completion(
            text,
            prompt_ids=list(request.prompt),
            token_ids=request.ids,
            logprobs=request.logprobs,
            entropies=request.entropies,
            certainty=request.scores,
            forced=forced,
            finish_reason=request.stopped,
            prompt_tokens=len(request.prompt),
            completion_tokens=len(request.ids),
            policy_version=self.version,
            info={"interventions": list(request.causes)} if request.causes else {},
        )

    def prompt(self, context: Context) -> list[int]:
        """Return the prompt's token ids; a conversation that grows keeps the ids it has."""
        messages = context.messages
        before: Sequence[Message] = context.memory.get("messages", ())
        if before and list(messages[: len(before)]) == list(before):
            tail = self._tail(before, messages)
            if tail is not None:
                ids: list[int] = context.memory["ids"]
                end = self.tokenizer.eos_token_id
                # A reply cut at its limit lacks its end mark.
                closed = ids if ids[-1] == end else [*ids, end]
                return [*closed, *tail]
        return self._encode(self._render(messages, True))

    def _tail(self, before: Sequence[Message], messages: Sequence[Message]) -> list[int] | None:
        """Return the tokens that the template puts after the last reply; None if it changes what came before."""
        old, new = self._render(before, False), self._render(messages, True)
        end = self.tokenizer.eos_token
        if end not in old or not new.startswith(old):
            return None
        return self._encode(old[old.rindex(end) + len(end) :] + new[len(old) :])

    def _render(self, messages: Sequence[Message], ask: bool) -> str:
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)
        return text

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids
