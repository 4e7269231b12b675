"""How the samples of one request are counted."""

from __future__ import annotations

from octavo.engine.requests import Sampling, Usage
from octavo.server.app import create_app
from octavo.server.generation import Generation, Sample
from octavo.server.service import Service
from tests.server.fake import FakeEngine


def test_a_prompt_counts_once_however_many_samples_read_it() -> None:
    """Two prompts, two samples each: what one sample computed is not cached, though its sibling found it."""
    engine = FakeEngine()
    service: Service = create_app(engine, engine).state.service
    samples = [Sample(prompt, Sampling()) for prompt in ("a", "a", "b", "b")]
    generation = Generation(service, samples, per_prompt=2, document=None, raw=True)
    generation.usages = [Usage(100, 0, 5), Usage(100, 64, 6), Usage(30, 20, 7), None]
    assert generation.usage() == Usage(130, 20, 18)
