"""AsyncEngine: many callers, one engine thread, and nobody left waiting."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import torch

from octavo import AsyncEngine, Engine, Recipe, Sampling
from octavo.engine.reader import Reader
from octavo.engine.requests import Delta
from octavo.errors import DocumentInUse, EngineStopped, InvalidRequest, PoolFull, UnknownDocument
from tests.engine.helpers import audit_engine, greedy, live, random_tokens, tiny_engine
from tests.tiny import tiny_loaded

Scenario = Callable[[AsyncEngine], Awaitable[None]]
PATIENCE = 60
"""Seconds until a wait counts as a hang."""


def run(scenario: Scenario, engine: Engine | None = None) -> Engine:
    """Play a scenario; afterwards the engine is closed and holds nothing."""
    engine = engine or tiny_engine()

    async def play() -> None:
        worker = AsyncEngine(engine)
        try:
            await scenario(worker)
        finally:
            await worker.close()

    async def timed() -> None:
        await asyncio.wait_for(play(), PATIENCE)

    asyncio.run(timed())
    audit_engine(engine)
    assert not engine._core.requests
    return engine


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


async def settled(worker: AsyncEngine) -> None:
    """Everything that was sent has been obeyed, undone where its caller had gone, and counted.

    The engine may look idle while commands still wait for its thread. Behind the first round trip lie those
    commands and what they told the loop; behind the second what the loop sent back in answer (an `undo`)
    and the statistics taken after it.
    """
    for _ in range(2):
        await worker._call(lambda: None)
    await until(lambda: worker.engine.idle)


def test_many_at_once_say_what_each_says_alone() -> None:
    prompts = [random_tokens(20 + 9 * n, n) for n in range(10)]
    alone = [tiny_engine().generate([p], greedy(20))[0].tokens for p in prompts]

    async def scenario(worker: AsyncEngine) -> None:
        answers = await asyncio.gather(*(worker.generate(p, greedy(20)) for p in prompts))
        assert [a.tokens for a in answers] == alone

    run(scenario)


def test_requests_are_batched_together() -> None:
    async def scenario(worker: AsyncEngine) -> None:
        await asyncio.gather(*(worker.generate("x" * n, greedy(30)) for n in range(1, 7)))
        assert worker.engine._core.clock.steps < 3 * 30

    run(scenario)


def test_leaving_the_stream_frees_its_pages() -> None:
    async def scenario(worker: AsyncEngine) -> None:
        stream = worker.stream("x", greedy(500))
        async for _ in stream:
            break
        await stream.aclose()
        await settled(worker)
        assert live(worker.engine) == 0
        assert worker.stats().requests["aborted"] == 1

    run(scenario)


def test_cancelling_a_task_frees_its_pages() -> None:
    async def scenario(worker: AsyncEngine) -> None:
        task = asyncio.create_task(worker.generate("x", greedy(500)))
        await until(lambda: worker.stats().tokens["generated"] > 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settled(worker)
        assert live(worker.engine) == 0

    run(scenario)


def test_cancelled_before_it_was_taken() -> None:
    """The request may be queued for the engine's thread, or just accepted by it, when its caller goes."""

    async def scenario(worker: AsyncEngine) -> None:
        for n in range(20):
            task = asyncio.create_task(worker.generate("x", greedy(500)))
            await asyncio.sleep(0.001 * (n % 3))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await settled(worker)
        assert not worker._readers
        assert live(worker.engine) == 0

    run(scenario)


def test_cancelled_between_the_answer_and_the_callers_turn() -> None:
    """The result has reached the loop, but its caller is cancelled before it runs again: it is undone."""
    undone: list[int] = []

    async def scenario(worker: AsyncEngine) -> None:
        task = asyncio.create_task(worker._call(lambda: 7, undo=undone.append))
        await asyncio.sleep(0)  # the command is on its way
        time.sleep(0.1)  # holds the loop: the result waits in it
        asyncio.get_running_loop().call_soon(task.cancel)  # runs behind the result, before the caller
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: undone == [7])

    run(scenario)


def test_wrong_input_reaches_its_caller_only() -> None:
    async def scenario(worker: AsyncEngine) -> None:
        other = asyncio.create_task(worker.generate("x", greedy(20)))
        with pytest.raises(InvalidRequest):
            await worker.generate("")
        with pytest.raises(UnknownDocument):
            await worker.generate("x", document="nothing")
        with pytest.raises(UnknownDocument):
            await worker.release("nothing")
        assert len((await other).tokens) == 20

    run(scenario)


def test_a_request_without_room_hears_so_and_others_go_on() -> None:
    async def scenario(worker: AsyncEngine) -> None:
        await worker.document(random_tokens(300), name="large")
        small = asyncio.create_task(worker.generate(random_tokens(10), greedy(60)))
        with pytest.raises(PoolFull):
            await worker.generate(random_tokens(300, 1), greedy(5))
        assert len((await small).tokens) == 60

    run(scenario, tiny_engine(memory="1MB"))


def test_documents_while_others_run() -> None:
    async def scenario(worker: AsyncEngine) -> None:
        other = asyncio.create_task(worker.generate("x", greedy(100)))
        await until(lambda: worker.stats().tokens["generated"] > 2)
        document = await worker.document(random_tokens(200), name="d")
        assert not other.done(), "a document holds up nobody"
        answers = await asyncio.gather(*(worker.generate([n], greedy(5), document="d") for n in range(3)))
        assert [a.usage.cached_tokens for a in answers] == [200] * 3
        reading = worker.stream([7], greedy(200), document=document)
        await anext(reading)
        with pytest.raises(DocumentInUse):
            await worker.release("d")
        await reading.aclose()
        await worker.release("d")
        assert len((await other).tokens) == 100
        assert live(worker.engine) == 0

    run(scenario)


def test_a_document_whose_caller_went_is_dropped() -> None:
    async def scenario(worker: AsyncEngine) -> None:
        task = asyncio.create_task(worker.document(random_tokens(1000), name="d"))
        await until(lambda: worker.stats().tokens["computed"] > 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settled(worker)
        assert not worker._awaited
        assert live(worker.engine) == 0
        assert (await worker.document("short", name="d")).name == "d"

    run(scenario, tiny_engine(chunk=16))


def test_a_dropped_document_that_found_readers_is_kept() -> None:
    """Ready, read by another and cancelled, before its caller's loop gets to know: the thread lives."""

    async def scenario(worker: AsyncEngine) -> None:
        task = asyncio.create_task(worker.document(random_tokens(600), name="d"))
        await until(lambda: bool(worker._awaited))
        while "d" not in worker.engine.documents:
            time.sleep(0.001)  # holds the event loop: the news of the document waits in it
        worker.engine.submit([1], greedy(3), document="d")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len((await worker.generate("y", greedy(3))).tokens) == 3

    run(scenario, tiny_engine(chunk=8))


def test_close_ends_open_requests() -> None:
    async def scenario(worker: AsyncEngine) -> None:
        tasks = [asyncio.create_task(worker.generate("x", greedy(2000))) for _ in range(3)]
        coming = asyncio.create_task(worker.document(random_tokens(3000), name="d"))
        await until(lambda: worker.stats().tokens["generated"] > 2)
        await worker.close()
        for task in tasks:
            with pytest.raises(EngineStopped):
                await task
        if not coming.done() or coming.exception():
            with pytest.raises(EngineStopped):
                await coming
        with pytest.raises(EngineStopped):
            await worker.generate("x")
        with pytest.raises(EngineStopped):
            await worker.document("x")
        await worker.close()

    run(scenario, tiny_engine(chunk=16))


def test_calls_that_race_with_close_end() -> None:
    async def scenario(worker: AsyncEngine) -> None:
        calls = [asyncio.create_task(worker.generate("x", greedy(3))) for _ in range(8)]
        closing = asyncio.create_task(worker.close())
        calls += [asyncio.create_task(worker.generate("x", greedy(3))) for _ in range(8)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(r, EngineStopped) or not isinstance(r, BaseException) for r in results), results
        await closing

    for _ in range(5):
        run(scenario)


def test_a_command_sent_while_the_thread_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is alive but has looked at its commands for the last time."""
    engine = tiny_engine()
    ended, leave = threading.Event(), threading.Event()
    original = AsyncEngine._run

    def lingering(self: AsyncEngine) -> None:
        original(self)
        ended.set()
        leave.wait(PATIENCE)

    monkeypatch.setattr(AsyncEngine, "_run", lingering)

    async def play() -> None:
        worker = AsyncEngine(engine)
        closing = asyncio.create_task(worker.close())
        await until(ended.is_set)
        try:
            with pytest.raises(EngineStopped):
                await asyncio.wait_for(worker.generate("x"), 5)
        finally:
            leave.set()
        await closing

    asyncio.run(play())


async def ending(stream: AsyncIterator[Delta]) -> str:
    try:
        async for delta in stream:
            if delta.finish:
                return delta.finish
    except EngineStopped as error:
        assert "broken on purpose" in str(error)
        return "broken"
    return "nothing"


@pytest.mark.parametrize("place", ["logits", "accept"])
def test_an_internal_error_reaches_every_request(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that had ended in the very step that broke."""

    def broken(*_: Any) -> torch.Tensor:
        raise RuntimeError("broken on purpose")

    async def scenario(worker: AsyncEngine) -> None:
        held: list[Any] = []
        for prompt in ("x", "y", "z"):
            stream = worker.stream(prompt, Sampling(max_tokens=10**3, ignore_eos=True))
            await anext(stream)
            held.append(stream)
        coming = asyncio.create_task(worker.document(random_tokens(2000), name="d"))
        await until(lambda: bool(worker._awaited))
        core = worker.engine._core
        if place == "logits":
            monkeypatch.setattr(core.runner, "logits", broken)
        else:
            requests = list(core.requests.values())
            requests[0].sequence.limit = 0  # ends with its next token
            monkeypatch.setattr(requests[1], "accept", broken)
        endings = [await ending(stream) for stream in held]
        assert endings[place == "accept" :] == ["broken"] * (3 - (place == "accept"))
        assert endings[0] == ("length" if place == "accept" else "broken")
        with pytest.raises(EngineStopped, match="broken on purpose"):
            await coming
        with pytest.raises(EngineStopped, match="broken on purpose"):
            await worker.generate("x")

    run(scenario, tiny_engine(chunk=8))


def test_statistics_count_what_has_been_told(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    async def scenario(worker: AsyncEngine) -> None:
        put = Reader.put

        def counting(self: Reader, delta: Delta) -> None:
            counted.append(worker.stats().tokens["generated"])
            put(self, delta)

        monkeypatch.setattr(Reader, "put", counting)
        await worker.generate("x", greedy(4))

    run(scenario)
    assert counted == [1, 2, 3, 4]


def test_statistics_do_not_wait_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server answers its health check on the event loop: no step may hold that up."""
    entered, leave = threading.Event(), threading.Event()

    async def scenario(worker: AsyncEngine) -> None:
        forward = worker.engine._core.runner.logits

        def slow(batch: Any) -> torch.Tensor:
            entered.set()
            leave.wait(PATIENCE)
            return forward(batch)

        monkeypatch.setattr(worker.engine._core.runner, "logits", slow)
        task = asyncio.create_task(worker.generate("x", greedy(2)))
        await until(entered.is_set)
        began = time.monotonic()
        threading.Timer(5, leave.set).start()
        assert worker.stats().backend["name"]
        assert worker.engine.documents == {}
        assert time.monotonic() - began < 4
        leave.set()
        await task
        await until(lambda: worker.stats().requests["finished"] == 1)

    run(scenario)


def test_two_event_loops_share_an_engine() -> None:
    engine = tiny_engine()
    worker = AsyncEngine(engine)
    heard: list[int] = []

    def caller() -> None:
        heard.append(len(asyncio.run(worker.generate("x", greedy(9))).tokens))

    threads = [threading.Thread(target=caller) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    asyncio.run(worker.close())
    assert heard == [9, 9, 9]


def test_engines_of_one_model_on_threads_of_their_own() -> None:
    """With Dual Chunk Attention and without: each turns the model's rotary embedding its own way."""
    prompts = [random_tokens(400 + n, n) for n in range(3)]
    recipes = (Recipe("plain", "plain"), Recipe("plain", "plain", dca="on", dca_chunk=64))
    made = tiny_loaded("llama")
    engines = [Engine(made, recipe, memory="16MB", chunk=16) for recipe in recipes]
    alone = [[a.tokens for a in engine.generate(prompts, greedy(20))] for engine in engines]
    said: list[list[Any]] = []

    async def ask(worker: AsyncEngine) -> list[list[int]]:
        answers = await asyncio.gather(*(worker.generate(p, greedy(20)) for p in prompts))
        scored = [answer.tokens for answer in answers]
        await worker.close()
        return scored

    async def both() -> None:
        workers = [AsyncEngine(Engine(made, recipe, memory="16MB", chunk=16)) for recipe in recipes]
        said.extend(await asyncio.wait_for(asyncio.gather(*map(ask, workers)), PATIENCE))

    asyncio.run(both())
    assert said == alone and alone[0] != alone[1]


def test_a_loop_that_died_does_not_take_the_engine_along() -> None:
    worker = AsyncEngine(tiny_engine())

    async def leave() -> None:
        await anext(worker.stream("x", greedy(10**3)))

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    assert len(asyncio.run(worker.generate("y", greedy(3))).tokens) == 3
    asyncio.run(worker.close())
