"""An OpenAI completions server as a system under test; a client thin enough to share the server's cores."""

import json
import resource
from collections.abc import Callable
from typing import Any

import aiohttp

from bench.replay import RequestFailed
from bench.workloads import WorkloadRequest


class HttpClient:
    """Sends workload requests to `/v1/completions` as token ids, streamed, greedy, EOS ignored."""

    def __init__(
        self, url: str, *, model: str | None = None, api_key: str | None = None, timeout_s: float = 1800
    ) -> None:
        self.url = url.rstrip("/")
        self._model = model
        self._api_key = api_key
        self._timeout_s = timeout_s

    async def __aenter__(self) -> "HttpClient":
        _allow_many_sockets()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            headers={"Authorization": f"Bearer {self._api_key}"} if self._api_key else {},
        )
        try:
            if self._model is None:
                self._model = (await self.get_json("/v1/models"))["data"][0]["id"]
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._session.close()

    async def get_text(self, path: str) -> str:
        async with self._session.get(self.url + path) as response:
            response.raise_for_status()
            return await response.text()

    async def get_json(self, path: str) -> Any:
        return json.loads(await self.get_text(path))

    async def send(self, request: WorkloadRequest, delivered: Callable[[], None]) -> int:
        body = {
            "model": self._model,
            "prompt": request.prompt_token_ids,
            "max_tokens": request.output_len,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            async with self._session.post(self.url + "/v1/completions", json=body) as response:
                if response.status != 200:
                    raise RequestFailed(f"HTTP {response.status}: {(await response.text())[:500]}")
                return await _read_stream(response.content, delivered)
        except TimeoutError:
            raise RequestFailed(f"no complete answer within {self._timeout_s:g} s") from None
        except aiohttp.ClientError as error:
            raise RequestFailed(f"{type(error).__name__}: {error}") from error


async def _read_stream(lines: aiohttp.StreamReader, delivered: Callable[[], None]) -> int:
    """Time the chunks of an SSE stream up to `[DONE]`; the token count is the server's, from the usage chunk.

    A chunk with empty text is a delivery too: its tokens may have no text yet (half a character).
    """
    num_output_tokens: int | None = None
    async for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            if num_output_tokens is None:
                raise RequestFailed("the stream has no usage")
            return num_output_tokens
        chunk = json.loads(data)
        if "error" in chunk:
            raise RequestFailed(f"error event: {chunk['error']}")
        if chunk.get("choices"):
            delivered()
        if chunk.get("usage"):
            num_output_tokens = chunk["usage"]["completion_tokens"]
    raise RequestFailed("the stream ended without [DONE]")


def _allow_many_sockets() -> None:
    """A burst opens a socket per request: use all the file descriptors the system grants."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
