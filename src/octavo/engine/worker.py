"""AsyncEngine: the engine on a thread of its own, for servers.

Text becomes tokens on a second thread, so that a long one holds up neither a step nor the caller's loop.
Everything else happens on the engine's own, between steps. Requests and documents enter in the order of their
calls; deltas travel back to the caller's event loop, and nobody's wait holds up the batch.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TypeVar

from octavo.engine.documents import Document, give_back
from octavo.engine.engine import Engine
from octavo.engine.reader import Command, Reader, answered, post
from octavo.engine.request import Request, collect
from octavo.engine.requests import Completion, Delta, Prompt, Sampling, Usage
from octavo.engine.stats import Stats
from octavo.engine.tokenising import Tokenising
from octavo.errors import EngineStopped, UnknownDocument

__all__ = ["AsyncEngine"]

T = TypeVar("T")


class AsyncEngine:
    """The async twin of Engine; takes the engine over and closes it at the end."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._gate = threading.Lock()  # a command is taken before the thread ends, or refused
        self._over = False
        self._tokenising = Tokenising()
        self._stats = engine.stats()
        self._readers: dict[int, Reader] = {}
        self._awaited: list[tuple[Document, Callable[[], None]]] = []
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        self._thread.start()

    async def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        document: Document | str | None = None,
        raw: bool = False,
    ) -> AsyncGenerator[Delta, None]:
        """Deltas of one request; leaving or cancelling the iteration aborts it and frees its pages at
        once."""
        [deltas] = await self.samples(prompt, [sampling], document=document, raw=raw)
        async with aclosing(deltas):
            async for delta in deltas:
                yield delta

    async def samples(
        self,
        prompt: Prompt,
        samplings: Sequence[Sampling | None],
        *,
        document: Document | str | None = None,
        raw: bool = False,
    ) -> list[AsyncGenerator[Delta, None]]:
        """A `stream` for each of several samples of one prompt, which is tokenised once; they are queued when
        they are first read."""
        prepare = partial(self.engine.prepare_samples, prompt, samplings, document=document, raw=raw)
        return [self._deltas(request) for request in await self._prepared(prepare)]

    async def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        document: Document | str | None = None,
        raw: bool = False,
    ) -> Completion:
        """One request, complete."""
        return collect([d async for d in self.stream(prompt, sampling, document=document, raw=raw)])

    async def document(
        self, text: str | Sequence[int], *, name: str | None = None, raw: bool = False
    ) -> Document:
        """Prefill a document; other requests go on meanwhile."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        prepared = await self._prepared(partial(self.engine.prepare_document, text, name=name, raw=raw))

        def begin() -> Document:
            document = self.engine.begin(prepared)
            self._awaited.append((document, lambda: post(loop, ready.set)))
            return document

        document = await self._call(begin, undo=give_back)
        try:
            await ready.wait()
        except asyncio.CancelledError:
            self._send(lambda: give_back(document))
            raise
        if document.error is not None:
            raise document.error
        if not document.ready:
            raise EngineStopped("the engine's thread broke before the document was ready")
        return document

    async def release(self, name: str) -> None:
        """Release the document of that name; DocumentInUse while requests read it."""

        def release() -> None:
            document = self.engine.documents.get(name)
            if document is None:
                raise UnknownDocument(f"no document {name!r} is held")
            document.release()

        await self._call(release)

    async def abort(self, request: int) -> bool:
        """Cancel a request by its id."""
        return await self._call(lambda: self.engine.abort(request))

    def stats(self) -> Stats:
        """The engine's statistics after its last step; never waits for one."""
        return self._stats

    async def close(self) -> None:
        """Stop after the current step; open requests end with EngineStopped."""
        self._send(None)
        await asyncio.to_thread(self._thread.join)

    # the caller's side

    async def _deltas(self, request: Request) -> AsyncGenerator[Delta, None]:
        reader = Reader(asyncio.get_running_loop())

        def start() -> int:
            id = self.engine.start(request)
            self._readers[id] = reader
            return id

        id = await self._call(start, undo=self._abandon)
        try:
            while True:
                delta = await reader.queue.get()
                if delta.error is not None:
                    raise delta.error
                yield delta
                if delta.finish:
                    return
        finally:
            self._send(lambda: self._abandon(id))

    async def _prepared(self, prepare: Callable[[], T]) -> T:
        """What `prepare` makes on the tokenising thread, one call after the other."""
        with self._gate:
            if self._over:
                raise EngineStopped("the engine was closed")
            work = self._tokenising.submit(prepare)
        return await asyncio.wrap_future(work)

    async def _call(self, function: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
        """Run `function` on the engine's thread; if the caller is gone by then, `undo` its result there."""
        return await answered(self._send, function, undo)

    def _send(self, command: Command | None) -> bool:
        """Queue a command for the engine's thread; False if that has ended."""
        with self._gate:
            if not self._over:
                self._commands.put(command)
            return not self._over

    # the engine's side

    def _run(self) -> None:
        try:
            while self._obey():
                if not self.engine.idle:
                    self._step()
        except Exception as error:  # whatever it was: nobody may wait for a thread that is gone
            self._dismiss(EngineStopped(f"the engine's thread broke: {error!r}"))
        else:
            self.engine.close()
            self._route()
        with self._gate:
            self._over = True
            self._tokenising.end()
        while not self._commands.empty():  # late callers hear EngineStopped from the engine itself
            command = self._commands.get()
            if command is not None:
                command()

    def _dismiss(self, reason: EngineStopped) -> None:
        """Tell every reader by hand: the engine's own words may not get through any more."""
        with suppress(Exception):
            self.engine.close(reason)
        for id, reader in self._readers.items():
            reader.put(Delta(id, "", (), Usage(0, 0, 0, 0), (), "error", reason))
        for _, tell in self._awaited:
            tell()

    def _obey(self) -> bool:
        """Run waiting commands, waiting for one while idle; False when told to stop."""
        while self.engine.idle or not self._commands.empty():
            command = self._commands.get()
            if command is None:
                return False
            command()
            self._route()
        return True

    def _step(self) -> None:
        with suppress(Exception):  # the engine told every request; later calls are refused with the reason
            self.engine.advance()
        self._route()

    def _route(self) -> None:
        deltas = self.engine.unread()
        self._stats = self.engine.stats()  # first, so that whoever reads a delta finds it counted
        for delta in deltas:
            if delta.request in self._readers:
                self._readers[delta.request].put(delta)
        self._tell_documents()

    def _tell_documents(self) -> None:
        for document, tell in self._awaited:
            if document.ready or document.error is not None:
                tell()
        self._awaited = [(d, t) for d, t in self._awaited if not d.ready and d.error is None]

    def _abandon(self, request: int) -> None:
        self.engine.abort(request)
        self._readers.pop(request, None)
