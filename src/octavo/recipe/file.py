"""Recipe files: TOML for people, and a safetensors file beside it for scales and key statistics.

version = 1
[cache]         the settings of Recipe, all or some
[layers]        "0-1" = "q8_0:q8_0"
[calibration]   file and sha256 of the safetensors; scales = "ratio" where they are applied
[model]         name, architecture, kv, weights: what the recipe was made for
[evidence]      what justified it: free keys, any values
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from octavo.errors import InvalidFile, InvalidRequest, UnknownName, unknown
from octavo.recipe.layers import canonical
from octavo.recipe.model import ModelFacts
from octavo.recipe.scales import Scales
from octavo.recipe.settings import Recipe
from octavo.recipe.toml import replace_files, to_toml

__all__ = ["SCALES", "RecipeFile"]

VERSION = 1
SCALES = "layers.{}.key_scale"
"""Name of a layer's scales in the safetensors."""

_TABLES = ("version", "cache", "layers", "calibration", "model", "evidence")
_CALIBRATION = ("file", "sha256", "scales")


@dataclass(frozen=True)
class RecipeFile:
    """A recipe and what justified it.

    evidence   free keys: texts, numbers, truth values, dates, and lists and tables of them
    tensors    statistics for the safetensors, beside the scales; not read back
    """

    recipe: Recipe
    evidence: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> RecipeFile:
        """The file at `path`. Raises InvalidFile, or UnknownName for a key that does not exist."""
        path = Path(path)
        document = _document(path)
        _refuse_unknown(path, "table", document, _TABLES)
        _check_version(path, document.get("version"))
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
        files: dict[Path, bytes] = {}
        if tensors:
            data = save({name: tensors[name].contiguous() for name in sorted(tensors)})
            beside = path.with_suffix(".safetensors")
            files[beside] = data
            document["calibration"] = {"file": beside.name, "sha256": hashlib.sha256(data).hexdigest()}
            if scales is not None:
                document["calibration"]["scales"] = scales.rule
        if self.recipe.model is not None:
            document["model"] = asdict(self.recipe.model)
        document["evidence"] = dict(self.evidence)
        replace_files(files | {path: to_toml({"version": VERSION}, document).encode()})


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise InvalidFile(f"recipe {path} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidFile(f"recipe {path} is no TOML: {error}") from error


def _check_version(path: Path, found: object) -> None:
    if found is None:
        raise InvalidFile(f"{path} has no version; write version = {VERSION} above its tables")
    if type(found) is not int or found != VERSION:  # true and 1.0 equal 1 in Python, and are no versions
        raise InvalidFile(f"{path} is of version {found!r}; this Octavo reads version = {VERSION}")


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
    try:
        return Recipe.from_dict({**document["cache"], "layers": canonical(document["layers"])})
    except UnknownName as error:
        raise UnknownName(f"{path}: {error}") from error
    except InvalidRequest as error:
        raise InvalidFile(f"{path}: {error}") from error


def _model(path: Path, found: dict[str, Any]) -> ModelFacts | None:
    if not found:
        return None
    names = [f.name for f in fields(ModelFacts)]
    _refuse_unknown(path, "model fact", found, names)
    kv = found.get("kv", [])
    values = {name: found.get(name, "") for name in names if name != "kv"}
    if not isinstance(kv, list) or not all(isinstance(value, str) for value in (*values.values(), *kv)):
        raise InvalidFile(f"{path}: a model's facts are texts, and kv is a list of them")
    return ModelFacts(**values, kv=tuple(kv))


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
