"""Request bodies of the generation and document routes, checked at the edge.

Strict: no string becomes a number. Unknown names are refused with the nearest known one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from octavo.engine.requests import KEEP, Sampling
from octavo.errors import unknown
from octavo.server import fields
from octavo.server.errors import shorten
from octavo.server.fields import Inert

__all__ = ["Body", "DocumentBody", "GenerationBody", "StreamOptions", "Text", "invalid", "text_or_ids"]

MAX_STOPS = 16
MAX_SAMPLES = 128
SEED_MASK = (1 << 63) - 1


def invalid(message: str, *, code: str = "invalid_value", field: str | None = None) -> PydanticCustomError:
    """A validator's complaint as a complete sentence; `field` is appended to the place pydantic knows."""
    context = {"message": message} | ({} if field is None else {"field": field})
    return PydanticCustomError(code, "{message}", context)


class Body(BaseModel):
    """A JSON object whose every name is known: honoured (a field) or inert (in the class's table)."""

    model_config = ConfigDict(strict=True, frozen=True)
    inert: ClassVar[Mapping[str, Inert]] = {}

    @model_validator(mode="before")
    @classmethod
    def names(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if cls.honours(name, value)}

    @classmethod
    def honours(cls, name: str, value: object) -> bool:
        """True for a field, False for an inert one of harmless value; anything else is refused."""
        if name in cls.model_fields:
            return True
        if name not in cls.inert:
            known = [*cls.model_fields, *cls.inert]
            shown = f"{name[:LONGEST_NAME]}…" if len(name) > LONGEST_NAME else name
            raise invalid(str(unknown("request field", shown, known)), code="unknown_parameter", field=shown)
        rule = cls.inert[name]
        if value is not None and not rule.holds(value):
            message = f"{name} is accepted only as {rule.accepts}: {rule.reason}"
            raise invalid(message, code="unsupported_parameter", field=name)
        return False


class StreamOptions(Body):
    """`include_usage`: one more chunk, without choices, tells the tokens of the request."""

    inert = fields.STREAM_OPTIONS
    include_usage: bool | None = None


LONGEST_NAME = 100
"""Characters of an unknown field's name that are told in full."""

MAX_BIASES = 4096
"""Entries of logit_bias: each that is wrong is reported on its own."""


def few(value: Any) -> Any:
    """A mapping small enough to be checked entry by entry."""
    if isinstance(value, dict) and len(value) > MAX_BIASES:
        raise invalid(f"logit_bias has {len(value):,} entries; at most {MAX_BIASES:,} are taken")
    return value


def as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Text = str | list[int]


def text_or_ids(value: Any, name: str = "text") -> Text:
    """A non-empty string, or a non-empty list of token ids."""
    if not isinstance(value, str | list):
        raise invalid(f"{name} is {shorten(value)}; it must be a string or a list of token ids")
    if not value:
        raise invalid(f"{name} is empty; it needs at least one token")
    if isinstance(value, list):
        wrong = next((n for n, token in enumerate(value) if type(token) is not int or token < 0), None)
        if wrong is not None:
            raise invalid(f"{name}[{wrong}] is {shorten(value[wrong])}; token ids are integers of 0 or more")
    return value


Penalty = Annotated[float, Field(ge=-2, le=2)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
TokenId = Annotated[int, Field(ge=0)]
Stop = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(max_length=MAX_STOPS),
    BeforeValidator(as_list),
]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]


class GenerationBody(Body):
    """What both generation routes honour. null means the default."""

    model: str
    document: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: Share | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    context_shift: bool | None = None
    keep: Annotated[int, Field(ge=0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(few)] | None
    ) = None

    @field_validator("logit_bias")
    @classmethod
    def keys_are_token_ids(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for key in bias or {}:
            if not (key.isascii() and key.isdigit() and len(key) < 10):
                raise invalid(
                    f"logit_bias has the key {key[:40]!r}; keys are token ids such as '42'", field=key[:40]
                )
        return bias

    @model_validator(mode="after")
    def options_need_stream(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options needs stream: true", field="stream_options")
        return self

    @property
    def samples(self) -> int:
        return self.n or 1

    @property
    def prompts(self) -> int:
        """How many prompts there are; each has `samples` of its own."""
        return 1

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(self, sample: int, *, max_tokens: int | None, logprobs: int | None) -> Sampling:
        """Settings of sample 0, 1, … of a prompt: the same, but for the seed, which counts up.

        OpenAI's default temperature is 1; top_p 0 leaves only the most likely token, which is greedy.
        """
        temperature = 1.0 if self.temperature is None else self.temperature
        return Sampling(
            max_tokens=max_tokens,
            temperature=0.0 if self.top_p == 0 else temperature,
            top_p=self.top_p or 1.0,
            top_k=self.top_k or 0,
            min_p=self.min_p or 0.0,
            seed=None if self.seed is None else (self.seed + sample) & SEED_MASK,
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            context_shift=bool(self.context_shift),
            keep=KEEP if self.keep is None else self.keep,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias={int(key): bias for key, bias in (self.logit_bias or {}).items()},
            logprobs=logprobs,
        )


class DocumentBody(Body):
    """Creates a document. `raw`: its text is read as it is, without the chat template's opening."""

    text: Annotated[Text, PlainValidator(text_or_ids)]
    name: Name | None = None
    raw: bool | None = None
