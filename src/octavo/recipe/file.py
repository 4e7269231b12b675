"""Recipe files: TOML for people, and a safetensors file beside it for scales and key statistics.

version = 1
[cache]         the settings of Recipe, all or some
[layers]        "0-1" = "q8_0:q8_0"
[calibration]   file and sha256 of the safetensors; scales = "ratio" where they are applied
[model]         name, architecture, kv, weights: what the recipe was made for
[evidence]      what justified it: free keys with texts, numbers and truth values
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from octavo.errors import InvalidFile, unknown
from octavo.recipe.layers import canonical
from octavo.recipe.model import ModelFacts
from octavo.recipe.scales import Scales
from octavo.recipe.settings import Recipe

__all__ = ["SCALES", "RecipeFile"]

VERSION = 1
SCALES = "layers.{}.key_scale"
"""Name of a layer's scales in the safetensors."""

_TABLES = ("version", "cache", "layers", "calibration", "model", "evidence")
_CALIBRATION = ("file", "sha256", "scales")


@dataclass(frozen=True)
class RecipeFile:
    """A recipe and what justified it.

    evidence   free keys: texts, numbers, truth values
    tensors    statistics for the safetensors, beside the scales; not read back
    """

    recipe: Recipe
    evidence: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> RecipeFile:
        """The file at `path`. Raises InvalidFile, or UnknownName for a key that does not exist."""
        path = Path(path)
        document = _document(path)
        _refuse_unknown(path, "table", document, _TABLES)
        if document.get("version") != VERSION:
            raise InvalidFile(
                f"{path} is of version {document.get('version')}; this Octavo reads version = {VERSION}"
            )
        for name in _TABLES[1:]:
            if not isinstance(document.setdefault(name, {}), dict):
                raise InvalidFile(f"{path}: {name} must be a table; write [{name}] above its settings")
        settings = _settings(path, document)
        scales, model = _scales(path, document["calibration"]), _model(path, document["model"])
        return cls(settings.with_(scales=scales, model=model), document["evidence"])

    def write(self, path: str | Path) -> None:
        """Write the TOML at `path`, and the safetensors beside it if there is anything to put there."""
        path = Path(path)
        document: dict[str, Any] = {
            "cache": {name: getattr(self.recipe, name) for name in Recipe.names() if name != "layers"},
            "layers": {part.where: f"{part.k}:{part.v}" for part in self.recipe.overrides},
        }
        tensors, scales = dict(self.tensors), self.recipe.scales
        if scales is not None:
            tensors |= {SCALES.format(n): scale for n in scales.layers if (scale := scales.of(n)) is not None}
        if tensors:
            data = save({name: tensors[name].contiguous() for name in sorted(tensors)})
            beside = path.with_suffix(".safetensors")
            _replace(beside, data)
            document["calibration"] = {"file": beside.name, "sha256": hashlib.sha256(data).hexdigest()}
            if scales is not None:
                document["calibration"]["scales"] = scales.rule
        if self.recipe.model is not None:
            document["model"] = asdict(self.recipe.model)
        document["evidence"] = dict(self.evidence)
        _replace(path, _toml(document).encode())


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise InvalidFile(f"recipe {path} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidFile(f"recipe {path} is no TOML: {error}") from error


def _refuse_unknown(path: Path, kind: str, found: Iterable[str], known: Iterable[str]) -> None:
    names = tuple(known)
    for name in found:
        if name not in names:
            raise unknown(f"{kind} in {path}:", name, names)


def _settings(path: Path, document: dict[str, Any]) -> Recipe:
    known = [name for name in Recipe.names() if name != "layers"]
    _refuse_unknown(path, "setting", document["cache"], known)
    for where, pair in document["layers"].items():
        if not isinstance(pair, str):
            raise InvalidFile(f'{path}: layers {where} are {pair!r}; write "{where}" = "k:v"')
    return Recipe.from_dict({**document["cache"], "layers": canonical(document["layers"])})


def _model(path: Path, found: dict[str, Any]) -> ModelFacts | None:
    if not found:
        return None
    names = [f.name for f in fields(ModelFacts)]
    _refuse_unknown(path, "model fact", found, names)
    values = {name: found.get(name, "") for name in names}
    kv = values["kv"] or []
    if not isinstance(kv, list) or not all(isinstance(v, str) for n, v in values.items() if n != "kv"):
        raise InvalidFile(f"{path}: a model's facts are texts, and kv is a list of them")
    return ModelFacts(**{**values, "kv": tuple(map(str, kv))})


def _scales(path: Path, found: dict[str, Any]) -> Scales | None:
    """The scales that the file says to apply; without `scales` the safetensors is not even opened."""
    _refuse_unknown(path, "calibration key", found, _CALIBRATION)
    if "scales" not in found:
        return None
    if not all(isinstance(found.get(name), str) for name in _CALIBRATION):
        raise InvalidFile(f"{path}: calibration needs file, sha256 and scales, all of them texts")
    beside = path.parent / found["file"]
    try:
        data = beside.read_bytes()
    except OSError as error:
        raise InvalidFile(
            f"{path} needs {beside}, which cannot be read ({error.strerror or error}); keep the two together"
        ) from error
    if hashlib.sha256(data).hexdigest() != found["sha256"]:
        raise InvalidFile(f"{beside} is not the file that {path} was written with; calibrate again")
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise InvalidFile(f"{beside} is no safetensors file: {error}") from error
    before, after = SCALES.split("{}")
    names = [name for name in tensors if name.startswith(before) and name.endswith(after)]
    return Scales({int(name[len(before) : -len(after)]): tensors[name] for name in names}, found["scales"])


def _toml(document: Mapping[str, Any]) -> str:
    """Tables of scalars and lists; JSON's strings, numbers and truth values are TOML's too."""
    lines = [f"version = {VERSION}"]
    for table, values in document.items():
        if values:
            lines += ["", f"[{table}]"]
            lines += [f"{_key(name)} = {_value(value)}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    bare = name.replace("_", "").isalnum() and name.isascii() and not name.isdigit()
    return name if bare else json.dumps(name, ensure_ascii=False)


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _replace(path: Path, data: bytes) -> None:
    """Put `data` at `path`, all of it or nothing."""
    scratch = path.with_name(path.name + ".part")
    try:
        scratch.write_bytes(data)
        scratch.replace(path)
    except OSError as error:
        raise InvalidFile(f"{path} cannot be written: {error.strerror or error}") from error
