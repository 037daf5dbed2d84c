"""A small real server that speaks the OpenAI chat API, for tests: its answers are scripted per model name."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

Answer = Callable[[dict[str, Any], int], Awaitable[Response]]


def completion(text: str | None, **message: Any) -> Response:
    """Answer with one choice, as a server of the chat API does."""
    return JSONResponse(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": text, **message},
                }
            ],
            "usage": {"prompt_tokens": 120, "completion_tokens": 30, "total_tokens": 150},
        }
    )


def problem(status: int, message: str, code: str | None = None, **headers: str) -> Response:
    """Answer with an error in OpenAI's form."""
    body = {"error": {"message": message, "type": "error", "param": None, "code": code}}
    return JSONResponse(body, status_code=status, headers=headers)


class ChatServer:
    """Runs in a thread of this process on a free port.

    Attributes:
        requests: bodies of the calls, in order.
        keys: API keys of the calls, in order.
        answers: model name -> how to answer, given the body and the number of earlier calls for that model.
        most: model name -> most calls that were in work at once.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.answers: dict[str, Answer] = {}
        self.most: Counter[str] = Counter()
        self._now: Counter[str] = Counter()
        app = FastAPI()
        app.post("/v1/chat/completions")(self._chat)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        earlier = sum(known["model"] == body["model"] for known in self.requests)
        self.requests.append(body)
        self.keys.append(request.headers.get("authorization", ""))
        model = body["model"]
        self._now[model] += 1
        self.most[model] = max(self.most[model], self._now[model])
        try:
            return await self.answers[model](body, earlier)
        finally:
            self._now[model] -= 1

    def says(self, model: str, text: str | None, **message: Any) -> None:
        """Let a model always give this reply."""

        async def answer(body: dict[str, Any], earlier: int) -> Response:
            return completion(text, **message)

        self.answers[model] = answer

    def script(self, model: str, *responses: Response, pause: float = 0.0) -> None:
        """Let a model answer its calls in turn; the last response is repeated."""

        async def answer(body: dict[str, Any], earlier: int) -> Response:
            await asyncio.sleep(pause)
            return responses[min(earlier, len(responses) - 1)]

        self.answers[model] = answer

    def stop(self) -> None:
        """End the server."""
        self._server.should_exit = True
        self._thread.join(timeout=10)
        self._socket.close()
