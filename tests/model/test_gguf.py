"""GGUF files: whole ones convert exactly, others are refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from packaging.version import Version

from octavo.errors import InvalidFile, InvalidRequest, UnsupportedModel
from octavo.model.gguf import _OLDEST, _VERSION, read_header
from octavo.model.load import load_model
from tests.model.gguf_file import HIDDEN, VOCAB, _weights, write_gguf

converts = pytest.mark.skipif(_VERSION < _OLDEST, reason=f"Transformers before {_OLDEST} is refused here")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "little.gguf")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_header_counts_every_byte(file: Path) -> None:
    header = read_header(file)
    assert (header.version, header.architecture) == (3, "llama")
    assert header.needed == file.stat().st_size
    assert header.parameters == 2 * VOCAB * HIDDEN + 5 * HIDDEN**2 + 2 * 32 * HIDDEN + 3 * HIDDEN
    assert header.metadata["tokenizer.ggml.eot_token_id"] == 261


@converts
def test_converts_once_and_exactly(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(file)
    stored = _weights()["blk.0.ffn_up.weight"]
    exact = dequantize(quantize(stored, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0)
    loaded = model.module.get_parameter("model.layers.0.mlp.up_proj.weight")
    assert torch.equal(loaded, torch.from_numpy(exact))
    assert (model.name, model.shape.dtype, model.shape.context) == ("little", "float32", 512)
    assert set(model.tokenizer.eos_ids) == {257, 261}
    assert model.tokenizer.encode("abé") == [262, 195, 169]
    assert model.tokenizer.has_chat

    monkeypatch.setattr("octavo.model.source.convert", None)
    assert load_model(file).identity == model.identity
    assert not list(cache.glob("*.partial-*"))


@pytest.mark.parametrize("kept", [30, 400, 5000, -1])
def test_cut_off(file: Path, tmp_path: Path, kept: int) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(InvalidFile, match=r"cut off.*fetch it again"):
        load_model(cut)


def test_cut_off_tensors_are_counted(file: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    size = file.stat().st_size
    cut.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InvalidFile, match=f"has {size - 100} of {size} bytes"):
        load_model(cut)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" + bytes(100), b"GGUF" + b"\xff" * 100])
def test_no_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "strange.bin"
    path.write_bytes(content)
    with pytest.raises(InvalidFile, match=r"no GGUF file|damaged"):
        load_model(path)


@converts
def test_unknown_architecture(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "odd.gguf", "oddity")
    with pytest.raises(UnsupportedModel, match="oddity"):
        load_model(path)
    assert not [p for p in cache.iterdir() if p.is_dir()]


def test_old_transformers_do_not_convert(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.model.gguf._VERSION", Version("5.17.0"))
    with pytest.raises(InvalidRequest, match=r"5\.17\.0 reads wrong tokenizers"):
        load_model(file)


def test_missing_package_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"pip install 'octavo\[gguf\]'"):
        read_header(file)
