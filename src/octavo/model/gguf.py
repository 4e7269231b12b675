"""GGUF files: their header read and checked, and their conversion into a folder Transformers loads fast.

Layout: magic, version, counts, metadata, tensor descriptions, padding, tensor data
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import importlib.util
import logging
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from packaging.version import Version
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from octavo.errors import InvalidFile, InvalidRequest, OctavoError, UnsupportedModel
from octavo.model.quiet import quiet
from octavo.model.refuse import refuse

__all__ = ["GgufHeader", "convert", "is_gguf", "read_header"]

log = logging.getLogger(__name__)

MAGIC = b"GGUF"
_VERSION, _OLDEST = Version(transformers.__version__), Version("5.24")
_SCALARS = ("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?")  # value types 0 to 7
_WIDE = {10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_FULL_PRECISION = 1_000_000_000


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says of itself. `needed` counts the bytes that the file must have."""

    version: int
    metadata: dict[str, Any]
    parameters: int
    needed: int

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", "unknown"))


def is_gguf(path: Path) -> bool:
    """Whether the file starts as GGUF files do."""
    with path.open("rb") as file:
        return file.read(4) == MAGIC


def read_header(path: Path) -> GgufHeader:
    """The header of a whole GGUF file; arrays are skipped.

    Raises InvalidFile where the file is none, is damaged, or ends too early.
    """
    _need("gguf")
    size = path.stat().st_size
    if size < 24 or not is_gguf(path):
        raise InvalidFile(
            f"{path} is no GGUF file: it does not start with 'GGUF'; give a .gguf file or a folder"
        )
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            header = _Reader(data).header()
        except (struct.error, UnicodeDecodeError, ValueError, KeyError) as error:
            raise InvalidFile(f"{path} is damaged or cut off inside its header; fetch it again") from error
    if size < header.needed:
        raise InvalidFile(f"{path} is cut off: it has {size} of {header.needed} bytes; fetch it again")
    return header


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4

    def header(self) -> GgufHeader:
        version = self._value("<I")
        if version not in (2, 3):
            raise ValueError(f"version {version}")
        tensors, entries = self._value("<Q"), self._value("<Q")
        metadata = dict(self._entry() for _ in range(entries))
        described = [self._tensor() for _ in range(tensors)]
        align = int(metadata.get("general.alignment", 32))
        start = -(-self._at // align) * align
        end = max((offset + nbytes for _, offset, nbytes in described), default=0)
        return GgufHeader(version, metadata, sum(n for n, _, _ in described), start + end)

    def _value(self, kind: str) -> Any:
        (value,) = struct.unpack_from(kind, self._data, self._at)
        self._at += struct.calcsize(kind)
        return value

    def _string(self) -> str:
        length = self._value("<Q")
        text = self._data[self._at : self._at + length]
        if len(text) < length:
            raise ValueError("a string runs past the end")
        self._at += length
        return text.decode()

    def _entry(self) -> tuple[str, Any]:
        return self._string(), self._typed(self._value("<I"))

    def _typed(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._skip_array(self._value("<I"), self._value("<Q"))
        return self._value(_SCALARS[kind] if kind < len(_SCALARS) else _WIDE[kind])

    def _skip_array(self, kind: int, length: int) -> None:
        if kind in (_STRING, _ARRAY):
            for _ in range(length):
                self._skip_string() if kind == _STRING else self._typed(kind)
            return
        self._at += length * struct.calcsize(_SCALARS[kind] if kind < len(_SCALARS) else _WIDE[kind])

    def _skip_string(self) -> None:
        (length,) = struct.unpack_from("<Q", self._data, self._at)
        self._at += 8 + int(length)

    def _tensor(self) -> tuple[int, int, int]:
        """Values, offset and bytes of the next tensor."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        self._string()
        dims = [self._value("<Q") for _ in range(self._value("<I"))]
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(self._value("<I"))]
        values = math.prod(dims)
        return values, self._value("<Q"), values // block * block_bytes


def convert(path: Path, folder: Path) -> None:
    """`folder` holds the model and tokenizer of the GGUF file `path`, dequantised.

    float32, which is exact, up to a billion parameters; bfloat16 above, for the disk's sake.
    """
    _need("accelerate")
    _check_version()
    header = read_header(path)
    dtype = torch.float32 if header.parameters <= _FULL_PRECISION else torch.bfloat16
    log.info(
        "converting %s (%s, %.0f M parameters) to %s once; this takes a minute or so",
        path.name, header.architecture, header.parameters / 1e6, str(dtype).removeprefix("torch."),
    )  # fmt: skip
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        config = AutoConfig.from_pretrained(**where)
        refuse(config)
        with quiet():
            model = AutoModelForCausalLM.from_pretrained(**where, config=config, dtype=dtype)
            tokenizer = AutoTokenizer.from_pretrained(**where)
    except (OctavoError, OSError):
        raise
    except Exception as error:  # its GGUF code and the tokenizers' raise what they like
        raise UnsupportedModel(
            f"Transformers cannot read {path.name} ({header.architecture}): {error}"
        ) from error
    _save(model, tokenizer, header, folder)


def _need(*packages: str) -> None:
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise InvalidRequest(f"reading GGUF files needs the package {name!r}; pip install 'octavo[gguf]'")


def _check_version() -> None:
    if _VERSION.release < _OLDEST.release:
        raise InvalidRequest(
            f"Transformers {_VERSION} reads wrong tokenizers from GGUF files; pip install "
            f"'transformers>={_OLDEST}', or convert the file on another machine and load the folder"
        )


def _save(model: Any, tokenizer: Any, header: GgufHeader, folder: Path) -> None:
    del model.config.quantization_config  # the weights are plain now
    model.hf_quantizer = None
    turn_end = header.metadata.get("tokenizer.ggml.eot_token_id")
    ends = [model.generation_config.eos_token_id, tokenizer.eos_token_id, turn_end]
    model.generation_config.eos_token_id = sorted({n for n in ends if isinstance(n, int)})
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
