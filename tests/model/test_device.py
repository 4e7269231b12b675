"""Devices by name."""

from __future__ import annotations

import pytest
import torch

from octavo import Engine, Recipe
from octavo.errors import InvalidRequest, PoolFull, UnsupportedModel
from octavo.model.device import find_device
from tests.engine.helpers import tiny_engine


def test_the_cpu_is_there() -> None:
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["foo", "cuda:99", "meta:x", ""])
def test_what_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"device {name!r} does not exist here: .*; try cpu"):
        find_device(name)


def test_an_engine_says_so_before_it_reads_weights() -> None:
    with pytest.raises(InvalidRequest, match="device 'foo'"):
        Engine("no/such-model", device="foo")


def test_strict_wants_the_kernels_on_a_cpu_too() -> None:
    with pytest.raises(UnsupportedModel, match="they need a CUDA device, not cpu"):
        tiny_engine("llama", Recipe("q8_0", "q8_0"), strict=True)


def test_more_memory_than_there_is() -> None:
    with pytest.raises(PoolFull, match=r"cpu has no room for a pool of .* bytes \(asked for\)"):
        tiny_engine(memory="900000GB")


@pytest.mark.parametrize("memory", [float("inf"), float("nan"), True, []])
def test_memory_that_is_no_size(memory: object) -> None:
    with pytest.raises(InvalidRequest, match="memory is"):
        tiny_engine(memory=memory)


def test_text_that_is_no_unicode() -> None:
    with pytest.raises(InvalidRequest, match="character 2 of the text is half of a surrogate pair"):
        tiny_engine(chat=False).generate(["ab\ud800c"])


@pytest.mark.parametrize("asked", [{"device": "meta"}, {"dtype": "bfloat16"}], ids=str)
def test_a_loaded_model_stays_what_it_is(asked: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match=r"the model is loaded (on cpu|in float32), not"):
        tiny_engine(**asked)
    tiny_engine(device="cpu", dtype="f32")
