"""A text that takes long to tokenise holds up its own caller, and nobody else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from octavo import AsyncEngine, Delta, Engine, Sampling
from octavo.errors import EngineStopped, InvalidRequest, PromptTooLong, UnknownDocument
from tests.engine.helpers import PLAIN, greedy, live, random_tokens, tiny_engine
from tests.engine.test_worker import PATIENCE, run, settled, until

HUGE = "a text of many megabytes"


class Slow:
    """While `slow_to_read` lasts: `entered` once HUGE is being tokenised, which ends when `leave` is set."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()


@contextmanager
def slow_to_read(engine: Engine) -> Iterator[Slow]:
    slow, plain = Slow(), engine.tokenizer._plain

    def tokens(text: str, *, control: bool = True) -> list[int]:
        if HUGE in text:
            slow.entered.set()
            assert slow.leave.wait(PATIENCE)
        return plain(text, control=control)

    engine.tokenizer._plain = tokens  # type: ignore[method-assign]
    try:
        yield slow
    finally:
        slow.leave.set()
        engine.tokenizer._plain = plain  # type: ignore[method-assign]


@pytest.mark.parametrize("what", ["request", "document", "behind a document"])
def test_streams_go_on_meanwhile(what: str) -> None:
    async def scenario(worker: AsyncEngine) -> None:
        await worker.document("short", name="d")
        stream = worker.stream([1, 2, 3], greedy(60))
        await anext(stream)
        with slow_to_read(worker.engine) as slow:
            huge = asyncio.create_task(
                worker.document(HUGE)
                if what == "document"
                else worker.generate(HUGE, greedy(1), document="d" if what != "request" else None)
            )
            await until(slow.entered.is_set)
            got = [delta async for delta in stream]
            assert got[-1].usage.completion_tokens == 60 and not huge.done()
            slow.leave.set()
            await huge

    run(scenario)


def test_steps_of_other_threads_go_on_meanwhile() -> None:
    with tiny_engine() as engine, slow_to_read(engine) as slow:
        thread = threading.Thread(target=lambda: engine.submit(HUGE))
        thread.start()
        assert slow.entered.wait(PATIENCE)
        threading.Timer(5, slow.leave.set).start()
        assert len(engine.generate([1, 2], greedy(5))[0].tokens) == 5
        assert not slow.leave.is_set()
        slow.leave.set()
        thread.join()


def test_requests_enter_in_the_order_of_their_calls() -> None:
    async def scenario(worker: AsyncEngine) -> None:
        with slow_to_read(worker.engine) as slow:
            prompts = [HUGE, [1, 2], "short"]
            calls = [asyncio.create_task(worker.generate(p, greedy(4), raw=True)) for p in prompts]
            await until(slow.entered.is_set)
            slow.leave.set()
            ids = [(await call).request for call in calls]
        assert ids == sorted(ids)

    run(scenario)


def counted(engine: Engine) -> list[str]:
    """Texts that are tokenised from now on."""
    texts, plain = [], engine.tokenizer._plain

    def tokens(text: str, *, control: bool = True) -> list[int]:
        texts.append(text)
        return plain(text, control=control)

    engine.tokenizer._plain = tokens  # type: ignore[method-assign]
    return texts


@pytest.mark.parametrize("document", [None, "d"])
def test_samples_of_a_prompt_are_tokenised_once(document: str | None) -> None:
    rules = [Sampling(max_tokens=6, temperature=1.0, seed=seed, ignore_eos=True) for seed in range(3)]

    async def scenario(worker: AsyncEngine) -> None:
        await worker.document("short", name="d")
        texts = counted(worker.engine)
        streams = await worker.samples("a question", rules, document=document)
        assert sum("a question" in text for text in texts) == 1
        answers = await asyncio.gather(*map(all_of, streams))
        alone = [(await worker.generate("a question", rule, document=document)).tokens for rule in rules]
        assert answers == alone and len(set(answers)) == 3

    run(scenario)


async def all_of(stream: AsyncGenerator[Delta, None]) -> tuple[int, ...]:
    return tuple([token async for delta in stream for token in delta.tokens])


def test_samples_that_nobody_reads_leave_nothing() -> None:
    async def scenario(worker: AsyncEngine) -> None:
        first, *_ = await worker.samples("a question", [greedy(10**3)] * 3)
        await anext(first)
        await first.aclose()
        await settled(worker)
        assert worker.engine.idle and live(worker.engine) == 0
        assert worker.stats().requests["aborted"] == 1

    run(scenario)


def test_samples_without_a_seed_differ() -> None:
    with tiny_engine() as engine:
        requests = engine.prepare_samples("x", [None, Sampling(), Sampling(seed=3)])
        seeds = [request.sequence.sampling.seed for request in requests]
        assert len(set(seeds)) == 3 and None not in seeds and seeds[2] == 3


LONGEST = len("<|assistant|>")
"""Characters of the byte tokenizer's longest token."""


@pytest.mark.parametrize("what", ["raw", "chat", "messages", "document", "raw document", "behind"])
def test_a_text_far_too_long_is_refused_before_it_is_tokenised(what: str) -> None:
    with tiny_engine(context=100) as engine:
        held = engine.document("short", name="d")
        texts = counted(engine)

        def ask(text: str) -> Any:
            if what.endswith("document"):
                return engine.prepare_document(text, raw=what.startswith("raw"))
            prompt: Any = [{"role": "user", "content": text}] if what == "messages" else text
            return engine.prepare(prompt, document="d" if what == "behind" else None, raw=what == "raw")

        far = "x" * (100 * LONGEST + 1)
        with pytest.raises(PromptTooLong, match=r"at least 1\d\d tokens, but a sequence holds at most 100"):
            ask(far)
        assert texts == []
        with pytest.raises(PromptTooLong, match=r": 1\d\d tokens, but a sequence holds at most 100"):
            ask("x" * 101)
        assert "x" * 101 in "".join(texts)
        ask("x" * (100 - held.tokens - 50))


def test_what_a_document_takes_counts_before_too() -> None:
    with tiny_engine(context=100) as engine:
        engine.document("x" * 60, name="d", raw=True)
        texts = counted(engine)
        with pytest.raises(PromptTooLong, match="at least 101 tokens"):
            engine.prepare("x" * (39 * LONGEST + 1), document="d", raw=True)
        assert texts == []


def test_what_a_shift_makes_room_for_is_tokenised() -> None:
    recipe = PLAIN.with_(dca="on", dca_chunk=256)
    with tiny_engine(recipe=recipe, context=1024) as engine:
        text = "x" * (1024 * LONGEST + 1)
        with pytest.raises(PromptTooLong, match="at least 1026 tokens"):
            engine.prepare(text, raw=True)
        shifting = Sampling(max_tokens=4, context_shift=True)
        assert len(engine.prepare(text, shifting, raw=True).sequence.tokens) > len(text) - 1
        with pytest.raises(PromptTooLong, match="at least"):
            engine.prepare_samples(text, [shifting, greedy(4)], raw=True)


def test_refusals_come_in_the_order_they_always_did() -> None:
    async def scenario(worker: AsyncEngine) -> None:
        with pytest.raises(UnknownDocument):
            await worker.generate("", document="nothing")
        with pytest.raises(InvalidRequest, match="the prompt is empty"):
            await worker.generate("")
        await worker.document("text", name="d")
        with pytest.raises(InvalidRequest, match="the document is empty"):
            await worker.document("", name="d")
        with pytest.raises(InvalidRequest, match="named 'd' exists"):
            await worker.document("text", name="d")

    run(scenario)


def test_a_document_that_goes_meanwhile() -> None:
    async def scenario(worker: AsyncEngine) -> None:
        await worker.document("text", name="d")
        with slow_to_read(worker.engine) as slow:
            asking = asyncio.create_task(worker.generate(HUGE, document="d"))
            await until(slow.entered.is_set)
            await worker.release("d")
            slow.leave.set()
            with pytest.raises(UnknownDocument, match="'d' was released before the request was queued"):
                await asking

    run(scenario)


def test_a_caller_that_goes_meanwhile_leaves_nothing() -> None:
    async def scenario(worker: AsyncEngine) -> None:
        with slow_to_read(worker.engine) as slow:
            calls = [asyncio.create_task(worker.generate(HUGE, greedy(9))) for _ in range(2)]
            calls.append(asyncio.create_task(worker.document(HUGE)))
            await until(slow.entered.is_set)
            for call in calls:
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
        await worker.generate(random_tokens(3), greedy(1))
        await settled(worker)
        assert live(worker.engine) == 0 and not worker.engine.documents
        assert worker.stats().requests["finished"] == 1

    run(scenario)


def test_close_does_not_wait_for_it() -> None:
    async def scenario(worker: AsyncEngine) -> None:
        with slow_to_read(worker.engine) as slow:
            call = asyncio.create_task(worker.generate(HUGE))
            behind = asyncio.create_task(worker.generate("short"))
            await until(slow.entered.is_set)
            await worker.close()
            with pytest.raises(EngineStopped):
                await worker.generate("late")
            assert not call.done()
            slow.leave.set()
            for waiting in (call, behind):
                with pytest.raises(EngineStopped):
                    await waiting

    run(scenario)


LEAVES = """
import asyncio, threading, time
from octavo import AsyncEngine
from tests.engine.helpers import tiny_engine

async def leave():
    worker, entered = AsyncEngine(tiny_engine()), threading.Event()
    worker.engine.tokenizer._plain = lambda text, **_: (entered.set(), time.sleep(60))
    call = asyncio.create_task(worker.generate("a text of many megabytes"))
    while not entered.is_set():
        await asyncio.sleep(0.01)
    await worker.close()

asyncio.run(leave())
print("left", flush=True)
"""


def test_a_process_that_ends_does_not_wait_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", LEAVES], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "left\n"
        try:
            assert process.wait(20) == 0
        finally:
            process.kill()
