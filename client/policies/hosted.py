"""A model behind an OpenAI-compatible chat API."""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, Any

import msgspec

from ...envs.core import stable_rng
from ...errors import InvalidRequest, PolicyFailed
from ...records import Completion, Message, scrub
from .base import Context

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion

DEFAULT_KEY = "OPENAI_API_KEY"
OVERFLOW = "context_overflow"
# How servers say that prompt and reply do not fit: OpenAI and vLLM, llama.cpp, llama-cpp-python, SGLang, TGI, proxies.
_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context (?:window|length|size)"
    r"|maximum model length|prompt is too long|must have less than \d+ tokens|`?max_new_tokens`? must be <=",
    re.IGNORECASE,
)


class Sampling(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, frozen=True):
    """How a model samples. What is None is not sent, and the server's default holds.

    Attributes:
        temperature: 0 is greedy.
        top_p: nucleus.
        top_k: sent beside the standard fields, as vLLM, SGLang and llama.cpp take it; OpenAI's own API refuses it.
        max_tokens: longest reply in tokens; 0 sends no limit.
        stop: texts at which the reply ends.
        seed: base seed; each call sends a number derived from it, the episode and the turn.
        logprobs: ask for the log-probability of each sampled token.
        extra: further fields of the request, for example ``{"max_completion_tokens": 4096}``.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int = 1024
    stop: list[str] = msgspec.field(default_factory=list)
    seed: int | None = None
    logprobs: bool = False
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class HostedPolicy:
    """Asks a hosted model for each reply.

    Failed calls (no connection, timeout, 408, 409, 429, 5xx) are repeated with exponential backoff, or after the
    time the server names. A prompt that does not fit the model's context is an outcome, not an error: the
    completion's ``finish_reason`` is "context_overflow". A reasoning model's separate reasoning is put back in
    front of the reply as ``<think>…</think>``.

    Args:
        model: the model's name on the server.
        name: name in records; the model's by default.
        base_url: for example "http://127.0.0.1:8000/v1"; OpenAI's by default.
        api_key_env: environment variable that holds the API key.
        sampling: sampling settings.
        prefix: text that the server's chat template writes before the reply and does not return (often "<think>");
            it is put back where the reply lacks it.
        price_input: price of 1M prompt tokens.
        price_output: price of 1M reply tokens.
        concurrency: most calls in flight.
        retries: how often a failed call is repeated.
        timeout: seconds one call may take.

    Raises:
        InvalidRequest: no server is named and no API key is set.
    """

    def __init__(
        self,
        model: str,
        *,
        name: str = "",
        base_url: str | None = None,
        api_key_env: str = DEFAULT_KEY,
        sampling: Sampling | None = None,
        prefix: str = "",
        price_input: float | None = None,
        price_output: float | None = None,
        concurrency: int = 32,
        retries: int = 5,
        timeout: float = 600.0,
    ) -> None:
        self.name = name or model
        self.model = model
        self.base_url = base_url
        self.sampling = sampling or Sampling()
        self.prefix = prefix
        self.prices = (price_input, price_output)
        self.retries = retries
        self.timeout = timeout
        self._key = os.environ.get(api_key_env)
        if not self._key and (base_url is None or api_key_env != DEFAULT_KEY):
            raise InvalidRequest(
                f"No API key in {api_key_env}.",
                hint=f"Set {api_key_env}, or name a server that needs none with --base-url.",
            )
        self.concurrency = concurrency
        self._open: tuple[AsyncOpenAI, asyncio.Semaphore] | None = None
        self._body = self._fields()

    def _fields(self) -> dict[str, Any]:
        """Return the part of the request that is the same for every call."""
        sampling = self.sampling
        fields = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens or None,
            "stop": sampling.stop or None,
            "logprobs": sampling.logprobs or None,
        }
        extra = dict(sampling.extra)
        if sampling.top_k is not None:
            extra["top_k"] = sampling.top_k
        body: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        return {**body, "extra_body": extra} if extra else body

    async def act(self, context: Context) -> Completion:
        """Return the model's reply to the prompt.

        Raises:
            InvalidRequest: at text level, which has no prompt.
            PolicyFailed: the server gave no reply, or refused the request.
        """
        import openai

        body = dict(self._body)
        if self.sampling.seed is not None:
            key = (self.sampling.seed, context.env, context.task, context.seed, context.attempt, context.turn)
            body["seed"] = int(stable_rng("sampling", *key).integers(2**31))
        messages: Any = [Message(role=m["role"], content=scrub(m["content"])) for m in context.messages]
        client, slots = self._connected()
        try:
            async with slots:
                reply = await client.chat.completions.create(model=self.model, messages=messages, **body)
        except openai.APIStatusError as error:
            if error.status_code in (400, 413, 422) and _OVERFLOW.search(error.response.text):
                return Completion(text="", finish_reason=OVERFLOW)
            raise self._refused(error) from error
        except openai.APITimeoutError as error:
            raise PolicyFailed(
                f"{self.model} did not answer within {self.timeout:g} s, {self.retries + 1} times.",
                hint="Raise --timeout, or lower --concurrency or --max-tokens.",
            ) from error
        except openai.APIConnectionError as error:
            raise PolicyFailed(
                f"No connection to {self._url()} ({error.__cause__ or error}).",
                hint="Start the model's server, or check --base-url.",
            ) from error
        except (openai.OpenAIError, ValueError) as error:
            raise self._nonsense(f"{type(error).__name__}: {error}") from error
        return self._completion(reply)

    def _connected(self) -> tuple[AsyncOpenAI, asyncio.Semaphore]:
        if self._open is None:
            from openai import AsyncOpenAI

            client = AsyncOpenAI(
                api_key=self._key or "none", base_url=self.base_url, max_retries=self.retries, timeout=self.timeout
            )
            # Both belong to the event loop of the first call, so they are made then.
            self._open = client, asyncio.Semaphore(self.concurrency)
        return self._open

    def _url(self) -> str:
        return self.base_url or "https://api.openai.com/v1"

    def _refused(self, error: Any) -> PolicyFailed:
        status = error.status_code
        hint = "The server's own log may say more."
        if status in (401, 403):
            hint = "Set the right API key (--api-key-env names its environment variable)."
        elif status == 404:
            hint = f"Check --model and --base-url (often it ends in /v1); {self._url()}/models lists the models."
        elif status == 429:
            hint = "Lower --concurrency or raise --retries, and run the same command again to resume."
        elif status in (400, 422):
            sent = ", ".join(sorted({*self._body, *self._body.get("extra_body", {})} - {"extra_body"}))
            seed = ", seed" if self.sampling.seed is not None else ""
            hint = f"Leave out the setting that this server does not know (sent: {sent}{seed})."
        return PolicyFailed(f"{self._url()} answered {status}: {_said(error)}", hint=hint, upstream_status=status)

    def _nonsense(self, what: str) -> PolicyFailed:
        return PolicyFailed(
            f"{self._url()} gave no chat completion ({what[:200]}).",
            hint="Check that --base-url names an OpenAI-compatible API (often it ends in /v1).",
        )

    def _completion(self, reply: ChatCompletion) -> Completion:
        # The client does not check types: a server may answer anything.
        choices = getattr(reply, "choices", None)
        message = getattr(choices[0], "message", None) if choices else None
        if not choices or message is None:
            raise self._nonsense(f"a {type(reply).__name__} without choices")
        choice = choices[0]
        given = getattr(choice, "logprobs", None)
        content = getattr(given, "content", None)
        logprobs = [token.logprob for token in content] if content else None
        usage = getattr(reply, "usage", None)
        prompt_tokens = getattr(usage, "prompt_tokens", None)
        completion_tokens = getattr(usage, "completion_tokens", None)
        if completion_tokens is None and logprobs is not None:
            completion_tokens = len(logprobs)
        return Completion(
            text=self._text(message),
            # vLLM gives the ids when asked to (extra: {"return_token_ids": true}).
            prompt_ids=getattr(reply, "prompt_token_ids", None),
            token_ids=getattr(choice, "token_ids", None),
            logprobs=logprobs,
            finish_reason=choice.finish_reason or "stop",
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cost=self._cost(prompt_tokens, completion_tokens),
        )

    def _text(self, message: Any) -> str:
        text = message.content or ""
        reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
        if isinstance(reasoning, str) and reasoning.strip() and not text.lstrip().startswith("<think>"):
            return scrub(f"<think>{reasoning}</think>{text}")
        if self.prefix and not text.lstrip().startswith(self.prefix.strip()):
            text = self.prefix + text
        return scrub(text)

    def _cost(self, prompt_tokens: int | None, completion_tokens: int | None) -> float | None:
        if self.prices == (None, None) or prompt_tokens is None or completion_tokens is None:
            return None
        price_input, price_output = (price or 0.0 for price in self.prices)
        return (prompt_tokens * price_input + completion_tokens * price_output) / 1e6

    async def aclose(self) -> None:
        """Close the connections."""
        if self._open is not None:
            (client, _), self._open = self._open, None
            await client.close()


def _said(error: Any) -> str:
    """Return what the server said, in one line."""
    body = error.body if isinstance(error.body, dict) else {}
    message = body.get("message") or error.response.text or error.message
    return " ".join(str(message).split())[:300]
