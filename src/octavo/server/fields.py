"""Fields OpenAI documents that change nothing here: which values pass, and why the others are refused.

A field is in exactly one place: a schema (honoured), or a table here. `null` always passes, as with OpenAI.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["CHAT", "COMMON", "COMPLETION", "MESSAGE", "PART", "STREAM_OPTIONS", "Inert"]


@dataclass(frozen=True)
class Inert:
    """A field without effect. `accepts` names the harmless values, `reason` why others are refused."""

    accepts: str
    holds: Callable[[object], bool]
    reason: str = ""


def of_type(cls: type, name: str) -> Inert:
    """Any value of `cls`: the field is a label or a hint and cannot change an answer."""
    return Inert(f"any {name}", lambda value: isinstance(value, cls), f"it must be a {name}")


def only(*values: object, reason: str) -> Inert:
    """The listed values."""
    shown = " or ".join(repr(value) for value in values)
    return Inert(shown, lambda value: any(type(value) is type(v) and value == v for v in values), reason)


def never(reason: str) -> Inert:
    """No value but null."""
    return Inert("null", lambda value: False, reason)


NO_TOOLS = "this server does not call tools; describe them in a message and parse the answer yourself"
NO_AUDIO = "this server generates text only"

COMMON: dict[str, Inert] = {
    "user": of_type(str, "string"),
    "metadata": of_type(dict, "object"),
    "store": only(False, reason="nothing is stored after a reply; keep the answer yourself"),
    "service_tier": only("auto", "default", reason="there is one tier"),
}

CHAT: dict[str, Inert] = {
    **COMMON,
    "safety_identifier": of_type(str, "string"),
    "prompt_cache_key": of_type(str, "string"),
    "prompt_cache_options": of_type(dict, "object"),
    "prompt_cache_retention": only("in_memory", "24h", reason="it must be 'in_memory' or '24h'"),
    "prediction": of_type(dict, "object"),
    "parallel_tool_calls": of_type(bool, "boolean"),
    "tools": only([], reason=NO_TOOLS),
    "functions": only([], reason=NO_TOOLS),
    "tool_choice": only("none", "auto", reason=NO_TOOLS),
    "function_call": only("none", "auto", reason=NO_TOOLS),
    "response_format": only(
        {"type": "text"}, reason="constrained output is not implemented; ask for JSON in a message"
    ),
    "modalities": only(["text"], reason=NO_AUDIO),
    "audio": never(NO_AUDIO),
    "moderation": never("this server does not moderate; call a moderation service yourself"),
    "web_search_options": never("this server does not search; put what you found in a message or a document"),
    "reasoning_effort": never("the model's chat template is used as it is; say how to reason in a message"),
    "verbosity": only("medium", reason="there is no such control; ask for short or long in a message"),
}

COMPLETION: dict[str, Inert] = {
    **COMMON,
    "suffix": only("", reason="filling in the middle is not implemented; put the suffix into the prompt"),
}

MESSAGE: dict[str, Inert] = {
    "refusal": never("a refusal has no place in a chat template; put its text into content"),
    "tool_calls": only([], reason=NO_TOOLS),
    "function_call": never(NO_TOOLS),
    "tool_call_id": never(NO_TOOLS),
    "audio": never(NO_AUDIO),
    "annotations": Inert("any list", lambda value: isinstance(value, list), "it must be a list"),
}

PART: dict[str, Inert] = {"prompt_cache_breakpoint": of_type(dict, "object")}

STREAM_OPTIONS: dict[str, Inert] = {
    "include_obfuscation": only(False, reason="chunks are not padded; put a TLS proxy in front that pads")
}
