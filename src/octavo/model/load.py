"""Models as the engine takes them: weights, tokenizer and shape under one name."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from octavo.errors import InvalidFile, InvalidRequest, UnknownName, UnsupportedModel, unknown
from octavo.model.describe import shape_of, text_config
from octavo.model.device import find_device
from octavo.model.digest import samples
from octavo.model.quiet import quiet
from octavo.model.refuse import COMPARED, TEXT_ONLY, refuse
from octavo.model.rope import fix_rope
from octavo.model.shape import ModelShape
from octavo.model.source import resolve
from octavo.model.tokenizer import Tokenizer

__all__ = ["LoadedModel", "fingerprint", "inspect_model", "load_model", "shape_of", "take_model"]

log = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_SHORT = {"f32": "float32", "fp32": "float32", "f16": "float16", "fp16": "float16", "bf16": "bfloat16"}
_TOKENIZER_FILES = ("tokenizer.json", "*.model", "vocab.*", "tekken.json", "*.tiktoken")


@dataclass
class LoadedModel:
    """A model ready to run.

    module      in eval mode, on its device, in its dtype
    identity    a hash of configuration and weights: pages of models that differ in it never meet
    source      where it came from: a folder or a hub id
    """

    module: nn.Module
    tokenizer: Tokenizer
    shape: ModelShape
    name: str
    identity: str
    source: Path | str


def take_model(model: str | Path | LoadedModel, *, device: str = "auto", dtype: str = "auto") -> LoadedModel:
    """The model, loaded unless it is: then device and dtype must be those it has, where they are given."""
    if not isinstance(model, LoadedModel):
        return load_model(model, device=find_device(device), dtype=dtype)
    place = next(model.module.parameters()).device
    wanted = place if device == "auto" else find_device(device)
    if (wanted.type, wanted.index or 0) != (place.type, place.index or 0):
        raise InvalidRequest(
            f"the model is loaded on {place}, not on {device}; load it there, or leave device out"
        )
    if dtype != "auto" and _SHORT.get(dtype, dtype) != model.shape.dtype:
        raise InvalidRequest(
            f"the model is loaded in {model.shape.dtype}, not in {dtype}; load it so, or leave dtype out"
        )
    return model


def load_model(
    model: str | Path, *, device: str | torch.device = "cpu", dtype: str = "auto", attention: str = "eager"
) -> LoadedModel:
    """The model of that name, path or hub id, in eval mode on `device`.

    `dtype` "auto" keeps what the weights are stored in; quantised weights load as Transformers loads them.
    `attention` names a registered attention function. Length-dependent RoPE is fixed for the trained context;
    an engine with a shorter one calls `fix_rope` again.
    Raises UnknownName, InvalidFile or UnsupportedModel, the last before any weight is read.
    """
    wanted = _dtype(dtype)
    source = resolve(model)
    config = _config(source)
    refuse(config)
    parameters = _parameters(config)
    with quiet():
        module = _weights(source, config, torch.device(device), wanted, attention)
        backend = _tokenizer(source)
    notes = _notes(config) + fix_rope(module, shape_of(config).context)
    return LoadedModel(
        module=module,
        tokenizer=Tokenizer(backend, eos_ids=_ends(module)),
        shape=shape_of(config, dtype=_dtype_name(module), parameters=parameters, notes=notes),
        name=_name(model),
        identity=fingerprint(module),
        source=source,
    )


def inspect_model(model: str | Path) -> ModelShape:
    """The shape of a model from its configuration alone; UnsupportedModel says why it cannot be served.

    A GGUF file is converted first, unless it was before.
    """
    config = _config(resolve(model))
    refuse(config)
    return shape_of(config, parameters=_parameters(config), notes=_notes(config))


def _dtype(name: str) -> torch.dtype | str:
    full = _SHORT.get(name, name)
    if full == "auto":
        return full
    if full not in _DTYPES:
        raise unknown("dtype", name, ("auto", *_DTYPES))
    return _DTYPES[full]


def _name(model: str | Path) -> str:
    path = Path(model)
    return path.stem if path.is_file() else path.name if path.is_dir() else str(model)


@contextmanager
def _reading(source: Path | str) -> Iterator[None]:
    """Transformers' errors as ours."""
    try:
        yield
    except UnsupportedModel:
        raise
    except OSError as error:
        if isinstance(source, Path):
            raise InvalidFile(f"{source} is incomplete: {_first_line(error)}") from error
        raise UnknownName(
            f"the hub model {source!r} cannot be fetched, and is not in the local cache: {_first_line(error)}"
        ) from error
    except (ValueError, KeyError, RuntimeError, ImportError) as error:
        raise UnsupportedModel(f"Transformers cannot load {source}: {_first_line(error)}") from error
    except Exception as error:
        if type(error).__name__ != "SafetensorError":
            raise
        raise InvalidFile(
            f"the weights in {source} are damaged or cut off ({error}); fetch them again"
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _config(source: Path | str) -> Any:
    with _reading(source):
        return AutoConfig.from_pretrained(str(source))


def _weights(
    source: Path | str, config: Any, device: torch.device, dtype: torch.dtype | str, attention: str
) -> nn.Module:
    quantised = getattr(config, "quantization_config", None) is not None
    place = {"device_map": {"": device}} if quantised else {}  # quantised weights are packed for their device
    with _reading(source):
        module = AutoModelForCausalLM.from_pretrained(
            str(source), dtype=dtype, attn_implementation=attention, **place
        )
    return (module if quantised else module.to(device)).eval()  # type: ignore[no-any-return]


def _tokenizer(source: Path | str) -> Any:
    if isinstance(source, Path) and not any(found for p in _TOKENIZER_FILES for found in source.glob(p)):
        # Transformers would make up an empty one from the model's type.
        raise InvalidFile(f"{source} has no tokenizer; put the model's tokenizer files beside its weights")
    try:
        return AutoTokenizer.from_pretrained(str(source))
    except Exception as error:  # missing files surface as many kinds of error
        raise InvalidFile(
            f"{source} has no tokenizer that Transformers can load ({_first_line(error)}); put the model's "
            "tokenizer files beside its weights"
        ) from error


def _ends(module: Any) -> list[int]:
    """The tokens that end an answer, by the generation settings and the configuration."""
    found: list[int] = []
    for settings in (getattr(module, "generation_config", None), text_config(module.config)):
        ends = getattr(settings, "eos_token_id", None)
        found += ends if isinstance(ends, list) else [ends] if ends is not None else []
    return found


def _dtype_name(module: nn.Module) -> str:
    return str(getattr(module, "dtype", torch.float32)).removeprefix("torch.")


def _parameters(config: Any) -> int:
    """Weights of the whole model, counted on a skeleton without memory."""
    try:
        with torch.device("meta"):
            skeleton = AutoModelForCausalLM.from_config(config)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UnsupportedModel(
            f"Transformers cannot build a {config.model_type} of this configuration: {_first_line(error)}"
        ) from error
    return sum(weight.numel() for weight in skeleton.parameters())


def _notes(config: Any) -> tuple[str, ...]:
    notes = []
    if config.model_type in TEXT_ONLY and text_config(config) is not config:
        notes.append("served without its image input")
    family = text_config(config).model_type.removesuffix("_text")
    if family not in COMPARED:
        notes.append(f"{family} is not among the families compared with Transformers' own attention")
    return tuple(notes)


def fingerprint(module: nn.Module) -> str:
    """A hash of a model's architecture and of samples from every weight, wherever it came from."""
    digest = hashlib.sha256(type(module).__name__.encode())
    for name, weight in sorted(module.named_parameters()):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        for sample in samples(weight):
            digest.update(sample.to(torch.float32).cpu().numpy().tobytes())
    return digest.hexdigest()[:24]
